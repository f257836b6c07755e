// SPDX-License-Identifier: Apache-2.0
// An fp16 model with fp32 batch norms and fp32 masters, under a dynamic scale.
#include "src/engine/amp/recipes/levels.h"

namespace nanhunt::engine {

ApexProperties apex_o2() {
  return {.opt_level = "O2",
          .cast_model_type = DType::kF16,
          .patch_torch_functions = false,
          .keep_batchnorm_fp32 = true,
          .master_weights = true,
          .loss_scale = std::nullopt};
}

}  // namespace nanhunt::engine
