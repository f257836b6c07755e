// SPDX-License-Identifier: Apache-2.0
// Pure fp16, without masters and without a loss scale.
#include "src/engine/amp/recipes/levels.h"

namespace nanhunt::engine {

ApexProperties apex_o3() {
  return {.opt_level = "O3",
          .cast_model_type = DType::kF16,
          .patch_torch_functions = false,
          .keep_batchnorm_fp32 = false,
          .master_weights = false,
          .loss_scale = 1.0};
}

}  // namespace nanhunt::engine
