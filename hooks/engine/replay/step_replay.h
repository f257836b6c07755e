// SPDX-License-Identifier: Apache-2.0
// A bad step run again and compared with itself, wherever its contents lie.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/trainer.h"
#include "nanhunt/recorder.h"
#include "src/hunt/replay_comparison.h"
#include "src/hunt/step_verdict.h"

namespace nanhunt::kernels {
class DeviceReadings;
}

namespace nanhunt::hooks {

// Whether a loss scaler skips the optimizer where gradients are bad.
bool holds_back(engine::Trainer& trainer);

struct StepReplay {
  std::uint32_t step = 0;
  const hunt::StepVerdict& verdict;
  const std::vector<hunt::StepFact>& original;
  const engine::OptimizerCopy* before = nullptr;       // the optimizer ran: what it wrote over
  kernels::DeviceReadings* readings = nullptr;         // facts are statistics read there, else checksums
  std::function<void()> before_begin = {};             // called when everything is as the step began
};
// Records the replay and what came of it. Else why it was not made, as a sentence.
std::optional<std::string> run_again(engine::Trainer& trainer, Recorder& recorder, const StepReplay& what);

}  // namespace nanhunt::hooks
