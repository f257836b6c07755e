// SPDX-License-Identifier: Apache-2.0
// What would bring the operations that an explanation lacks into a trace: one decision for all findings and sentences.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// Why the run of one rank has not more operations in its trace.
struct OpsInTrace {
  std::string why_no_tap;  // of PyTorch, as a clause; "": it was there, or the framework needs none
  bool damaged = false;    // records were lost
  bool all = false;        // operations of every step were heard

  bool level_helps() const { return why_no_tap.empty() && !all; }  // to train again at level ops
};

std::string why_no_tap(std::string_view note);  // of the run; "": it says something else
// What makes the tap available, as a sentence; "": the reason says it itself, or it is not known for this one.
std::string tap_todo(std::string_view why_no_tap);

// Findings ask for "record-ops" whatever the run was. It becomes what can help here.
void advise_recording(std::vector<Finding>& findings, const OpsInTrace& ops);

}  // namespace nanhunt::analyze
