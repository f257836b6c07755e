// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nanhunt::analyze {

// How a step ended, as far as births of badness need to know.
struct StepOutcome {
  bool scaled = false;     // a scaler was at work
  bool held_back = false;  // the optimizer did not run
  bool unfinished = false;  // nor could it: the run ended while scaled gradients were added up
  double scale = 1;        // that the gradients of this step were multiplied by

  bool changed_nothing() const { return held_back || unfinished; }
};

}  // namespace nanhunt::analyze
