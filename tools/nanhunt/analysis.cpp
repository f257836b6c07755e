// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/analysis.h"

#include <algorithm>

#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

namespace {

// A copy of a damaged trace is whole itself; what it was made from was not (see salvage_attempt).
bool salvaged_with_losses(const RunInfo& info) {
  return std::any_of(info.options.begin(), info.options.end(), [](const auto& option) {
    return option.first == "salvaged" && !option.second.starts_with("chunks lost 0, rows lost 0, bytes skipped 0");
  });
}

}  // namespace

bool is_damaged(const Analysis& analysis) {
  return analysis.coverage.chunks_lost != 0 ||
         std::any_of(analysis.ranks.begin(), analysis.ranks.end(),
                     [](const RankSummary& r) { return r.health.damaged() || salvaged_with_losses(r.info); });
}

Result<Analysis> load_analysis(const std::string& run) {
  auto analysis = analyze_run(run);
  if (analysis && is_damaged(*analysis)) {
    say("the trace is damaged; the verdict rests on what could be read. `nanhunt doctor " + run +
        "` says what was lost.");
  }
  return analysis;
}

}  // namespace nanhunt::cli
