// SPDX-License-Identifier: Apache-2.0
// Pure fp32: the baseline.
#include "src/engine/amp/recipes/levels.h"

namespace nanhunt::engine {

ApexProperties apex_o0() {
  return {.opt_level = "O0",
          .cast_model_type = DType::kF32,
          .patch_torch_functions = false,
          .keep_batchnorm_fp32 = std::nullopt,
          .master_weights = false,
          .loss_scale = 1.0};
}

}  // namespace nanhunt::engine
