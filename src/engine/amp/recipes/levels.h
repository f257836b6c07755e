// SPDX-License-Identifier: Apache-2.0
// The levels of amp.initialize, one file each, and torch.amp.
#pragma once

#include "nanhunt/engine/recipes.h"

namespace nanhunt::engine {

ApexProperties apex_o0();
ApexProperties apex_o1();
ApexProperties apex_o2();
ApexProperties apex_o3();

// fp16 or bf16.
TrainingSetup torch_amp(TrainingSetup setup, DType dtype);

}  // namespace nanhunt::engine
