// SPDX-License-Identifier: Apache-2.0
// Casts around ops by Apex's lists; the model stays as it is.
#include "src/engine/amp/recipes/levels.h"

namespace nanhunt::engine {

ApexProperties apex_o1() {
  return {.opt_level = "O1",
          .cast_model_type = std::nullopt,
          .patch_torch_functions = true,
          .keep_batchnorm_fp32 = std::nullopt,
          .master_weights = std::nullopt,
          .loss_scale = std::nullopt};
}

}  // namespace nanhunt::engine
