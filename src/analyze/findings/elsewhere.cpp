// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "src/analyze/wording/advice.h"

namespace nanhunt::analyze {
namespace {

// As hooks/torch/nanhunt/_steps/elsewhere.py.
constexpr std::string_view kProcess = "operations of the process that made a bad batch";
constexpr std::string_view kWorkers = "operations of a DataLoader's workers";
constexpr std::string_view kThreads = "operations of the program's other threads";
constexpr std::string_view kLoaded = "<batch>";

bool noted(const Coverage& coverage, std::string_view note) { return coverage.notes.contains(std::string(note)); }

}  // namespace

void advise_elsewhere(std::vector<Finding>& findings, const Coverage& coverage) {
  const bool process = noted(coverage, kProcess), workers = noted(coverage, kWorkers);
  if (!process && !workers && !noted(coverage, kThreads)) return;
  for (Finding& f : findings) {
    if (f.cls != FindingClass::kBadInput || f.severity == Severity::kInfo || f.place.op != kLoaded) continue;
    if (process) {
      f.explanation =
          "The numbers were not finite when they came from another process, which loads data (a DataLoader's worker, "
          "say): operations there are not heard. A sample is bad, or what was made of it there (divided by a deviation "
          "of 0, say).";
    } else {
      f.evidence.push_back(fmt::format("{} ran beside the training: operations there are not heard.",
                                       workers ? "Workers of a DataLoader" : "Other threads of the program"));
    }
    const Advice advice = make_advice(process || workers ? "load-in-training" : "make-in-training");
    // Another advice to hear more would not hear this.
    std::erase_if(f.advice, [](const Advice& one) { return one.id == "record-ops" || one.id == "look-beyond-ops"; });
    // What only ran beside may be none of it: it comes behind what the loss itself shows.
    const auto samples = std::find_if(f.advice.begin(), f.advice.end(),
                                      [](const Advice& one) { return one.id == "drop-bad-samples"; });
    f.advice.insert(process ? f.advice.begin() : samples, advice);
  }
}

}  // namespace nanhunt::analyze
