// SPDX-License-Identifier: Apache-2.0
// Whether a replayed step did what the step did. A replay is believed only as far as it was compared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/event.h"

namespace nanhunt::hunt {

// Contents of one value in one run of a step.
struct StepFact {
  TensorRole kind = TensorRole::kLoss;
  std::string path;             // "loss", "loss of micro-batch 1", "fc1.weight"
  bool finite = true;
  std::uint64_t checksum = 0;   // of the bytes, or of what else they are compared by
};

struct ReplayComparison {
  ReplayResult result = ReplayResult::kReproduced;
  std::string text;  // a sentence: what was compared, and the first that differs
};

// `original`: what is known of the step as it ran; only that is compared. `replay`: all that the replay showed.
//   reproduced  every fact of the original came out again, bit for bit
//   clean       the original was bad somewhere, the replay nowhere
//   differs     anything else
// `what` equal checksums mean: the same "bits", or the same "statistics" where contents stay on a device.
ReplayComparison compare_replay(const std::vector<StepFact>& original, const std::vector<StepFact>& replay,
                                std::string_view what = "bits");

}  // namespace nanhunt::hunt
