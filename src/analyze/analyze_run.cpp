// SPDX-License-Identifier: Apache-2.0
// From a run folder to an analysis: the newest attempt of each rank.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "nanhunt/analyzer.h"
#include "src/analyze/merge.h"

namespace nanhunt {

Result<Analysis> analyze_run(const std::string& path, const AnalyzeOptions& options) {
  Result<std::vector<AttemptTrace>> found = find_attempts(path);
  if (!found) return found.status();
  std::map<std::uint32_t, const AttemptTrace*> newest;  // by rank
  for (const AttemptTrace& attempt : *found) {
    const AttemptTrace*& best = newest[attempt.info.rank];
    if (best == nullptr || attempt.info.attempt >= best->info.attempt) best = &attempt;
  }
  std::vector<Analysis> ranks;
  Status first_failure;
  std::vector<std::string> unreadable, silent;
  for (const auto& [rank, attempt] : newest) {
    const std::unique_ptr<Analyzer> analyzer = Analyzer::make(options);
    TraceHealth health;
    const Status read = read_attempt(
        *attempt, [&](const RecordBatch& batch) { analyzer->add(batch); }, health);
    if (!read && read.code() != StatusCode::kDamaged) {
      if (first_failure.is_ok()) first_failure = read;
      unreadable.push_back(fmt::format("Rank {}: {}", rank, read.message()));
      continue;  // the other ranks may still tell
    }
    ranks.push_back(analyzer->finish(attempt->info, health));
    if (const Coverage& seen = ranks.back().coverage; seen.ops == 0 && seen.steps == 0) {
      const bool lost = seen.chunks_lost + seen.records_dropped != 0;
      silent.push_back(fmt::format("Rank {}: nothing {}.", rank, lost ? "that is left can be judged" : "was recorded"));
    }
  }
  if (ranks.empty()) {
    if (!first_failure.is_ok()) return first_failure;
    return Status(StatusCode::kNotFound, path + ": no trace found. Give a run folder made by nanhunt.");
  }
  std::size_t world = 0;
  for (const Analysis& one : ranks) world = std::max<std::size_t>(world, one.ranks.front().info.world_size);
  Analysis merged = analyze::merge_ranks(std::move(ranks), options);
  const bool harmless =
      merged.verdict.status == VerdictStatus::kClean || merged.verdict.status == VerdictStatus::kCalibrating;
  if (harmless && unreadable.size() + silent.size() > 0) {
    merged.verdict.status = VerdictStatus::kInconclusive;
    merged.verdict.headline = fmt::format("No harm in what could be read, but {} of {} ranks {}",
                                          unreadable.size() + silent.size(), newest.size(),
                                          silent.empty() ? "could not be read" : "left nothing to read");
  }
  merged.coverage.chunks_lost += unreadable.size();  // at least one each
  for (std::vector<std::string>* lines : {&unreadable, &silent}) {
    for (std::string& line : *lines) merged.coverage.unwatched.push_back(std::move(line));
  }
  if (world > newest.size()) {
    merged.coverage.unwatched.push_back(
        fmt::format("{} of the run's {} ranks: there is no trace of them here.", world - newest.size(), world));
  }
  return merged;
}

}  // namespace nanhunt
