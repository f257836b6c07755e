// SPDX-License-Identifier: Apache-2.0
// Rules about what an optimizer and a loss scaler keep.
#pragma once

#include <vector>

#include "src/checkpoint/judge.h"

namespace nanhunt::checkpoint {

void judge_optimizer_state(const Checkpoint& checkpoint, const std::vector<TensorResult>& results,
                           std::vector<Finding>& findings);
void judge_loss_scale(const Checkpoint& checkpoint, std::vector<Finding>& findings);

}  // namespace nanhunt::checkpoint
