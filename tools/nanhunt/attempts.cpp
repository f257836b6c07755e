// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/attempts.h"

#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

Result<std::vector<AttemptTrace>> choose_attempts(const std::string& run, std::optional<std::uint32_t> rank,
                                                  std::optional<std::uint32_t> attempt) {
  auto all = find_attempts(run);
  if (!all) return all.status();
  std::vector<AttemptTrace> chosen;
  for (AttemptTrace& one : *all) {
    if (rank && one.info.rank != *rank) continue;
    if (attempt && one.info.attempt != *attempt) continue;
    // Ordered by rank, then attempt: a later one of the same rank is newer.
    if (!attempt && !chosen.empty() && chosen.back().info.rank == one.info.rank) chosen.pop_back();
    chosen.push_back(std::move(one));
  }
  if (chosen.empty()) {
    return Status(StatusCode::kUsage,
                  "'" + run + "' has no such rank or attempt. `nanhunt info " + shell_word(run) + "` lists what there is.");
  }
  return chosen;
}

int read_each(const std::vector<AttemptTrace>& attempts, const std::function<Status(const AttemptTrace&)>& read) {
  int unreadable = kDone;
  bool any_read = false;
  for (const AttemptTrace& attempt : attempts) {
    const Status status = read(attempt);
    if (status || status.code() == StatusCode::kDamaged) {
      any_read = true;
      if (!status) say(status.message());
    } else {
      unreadable = fail(status);
    }
  }
  return any_read ? kDone : unreadable;
}

std::string describe_damage(const TraceHealth& health) {
  if (!health.damaged()) return "";
  std::string text = reports::plural(health.chunks_lost, "chunk", "chunks") + " lost";
  if (health.rows_lost != 0) text += " with " + reports::plural(health.rows_lost, "row", "rows");
  if (health.bytes_skipped != 0) text += ", " + reports::format_bytes(health.bytes_skipped) + " skipped";
  return text;
}

}  // namespace nanhunt::cli
