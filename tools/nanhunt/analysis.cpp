// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/analysis.h"

#include <algorithm>

#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

// A copy of a damaged trace is whole itself; what it was made from was not.
bool is_damaged(const Analysis& analysis) {
  return analysis.coverage.chunks_lost != 0 ||
         std::any_of(analysis.ranks.begin(), analysis.ranks.end(),
                     [](const RankSummary& r) { return r.health.damaged() || lost_before_salvage(r.info).damaged(); });
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
