// SPDX-License-Identifier: Apache-2.0
// From a run folder to an analysis: the newest attempt of each rank, with those of other processes of its run, put
// together.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "nanhunt/analyzer.h"
#include "src/analyze/findings/before_training.h"
#include "src/analyze/findings/merge.h"
#include "src/analyze/ranks/comm_join.h"
#include "src/analyze/ranks/rank_pass.h"

namespace nanhunt {

Result<Analysis> analyze_run(const std::string& path, const AnalyzeOptions& options) {
  Result<std::vector<AttemptTrace>> found = find_attempts(path);
  if (!found) return found.status();
  if (!options.ranks.empty()) {
    std::erase_if(*found, [&](const AttemptTrace& one) {
      return std::find(options.ranks.begin(), options.ranks.end(), one.info.rank) == options.ranks.end();
    });
  }
  std::map<std::uint32_t, const AttemptTrace*> newest;  // by rank
  for (const AttemptTrace& attempt : *found) {
    const AttemptTrace*& best = newest[attempt.info.rank];
    if (best == nullptr || attempt.info.attempt >= best->info.attempt) best = &attempt;
  }
  struct Read {
    const AttemptTrace* attempt;
    std::unique_ptr<analyze::RankPass> pass;
    TraceHealth health;
  };
  std::vector<Read> reads;  // of the newest
  std::vector<Read> beside;  // other processes of the same run: children that trained as well
  Status first_failure;
  std::vector<std::string> unreadable, silent;
  std::vector<const AttemptTrace*> chosen;
  for (const auto& [rank, attempt] : newest) chosen.push_back(attempt);
  for (const AttemptTrace& attempt : *found) {
    const AttemptTrace* last = newest[attempt.info.rank];
    if (&attempt != last && !attempt.info.run.empty() && attempt.info.run == last->info.run) chosen.push_back(&attempt);
  }
  for (const AttemptTrace* attempt : chosen) {
    const std::uint32_t rank = attempt->info.rank;
    std::unique_ptr<analyze::RankPass> pass = analyze::RankPass::make(options, rank);
    TraceHealth health;
    const Status read = read_attempt(
        *attempt, [&](const RecordBatch& batch) { pass->add(batch); }, health);
    if (!read && read.code() != StatusCode::kDamaged) {
      if (first_failure.is_ok()) first_failure = read;
      unreadable.push_back(fmt::format("Rank {}: {}", rank, read.message()));
      continue;  // the other ranks may still tell
    }
    pass->end(health);
    (attempt == newest[rank] ? reads : beside).push_back({attempt, std::move(pass), std::move(health)});
  }
  if (reads.empty()) {
    if (!first_failure.is_ok()) return first_failure;
    return Status(StatusCode::kNotFound, path + ": no trace found. Give a run folder made by nanhunt.");
  }
  std::uint32_t world = 0;
  std::vector<analyze::RankPass*> passes;
  for (const Read& one : reads) {
    world = std::max(world, one.attempt->info.world_size);
    passes.push_back(one.pass.get());
  }
  const std::vector<analyze::RankVerdict> verdicts = analyze::join_ranks(passes);
  std::vector<Analysis> ranks;
  const auto judge = [&](Read& one, const analyze::RankVerdict& verdict) {
    ranks.push_back(one.pass->judge(one.attempt->info, one.health, verdict));
    one.pass.reset();
    const Coverage& seen = ranks.back().coverage;
    if (seen.ops != 0 || seen.steps != 0) return;
    const bool lost = seen.chunks_lost + seen.records_dropped != 0;
    silent.push_back(fmt::format("Rank {}: nothing {}.", one.attempt->info.rank,
                                 lost ? "that is left can be judged" : "was recorded"));
  };
  for (std::size_t i = 0; i < reads.size(); ++i) judge(reads[i], verdicts[i]);
  const std::size_t heard = ranks.size();
  for (Read& one : beside) {
    analyze::RankVerdict alone;
    alone.rank = one.attempt->info.rank;
    judge(one, alone);
    for (Finding& f : ranks.back().findings) f.attempt = one.attempt->info.attempt;
  }
  analyze::excuse_before_training(ranks, heard);
  // What a rank did that cannot be read is not known: no origin is certain to be all of it.
  const bool all_there = world <= heard && unreadable.empty() && silent.empty();
  if (!all_there && std::max<std::size_t>(world, newest.size()) > 1) analyze::doubt(ranks);
  const std::size_t processes = newest.size() + beside.size();
  Analysis merged = analyze::merge_ranks(std::move(ranks), options);
  const bool harmless =
      merged.verdict.status == VerdictStatus::kClean || merged.verdict.status == VerdictStatus::kCalibrating;
  if (harmless && unreadable.size() + silent.size() > 0) {
    merged.verdict.status = VerdictStatus::kInconclusive;
    merged.verdict.headline = fmt::format("No harm in what could be read, but {} of {} {} {}",
                                          unreadable.size() + silent.size(), processes,
                                          beside.empty() ? "ranks" : "processes",
                                          silent.empty() ? "could not be read" : "left nothing to read");
  }
  merged.coverage.chunks_lost += unreadable.size();  // at least one each
  for (std::vector<std::string>* lines : {&unreadable, &silent}) {
    for (std::string& line : *lines) merged.coverage.unwatched.push_back(std::move(line));
  }
  if (world > newest.size()) {
    merged.coverage.unwatched.push_back(
        fmt::format("{} of the run's {} ranks: there is no trace of them here, so where badness began is inferred.",
                    world - newest.size(), world));
  }
  return merged;
}

}  // namespace nanhunt
