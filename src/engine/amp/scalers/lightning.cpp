// SPDX-License-Identifier: Apache-2.0
// Lightning's "16-mixed" precision uses torch's scaler; its order of a step is Trainer's.
#include "nanhunt/engine/loss_scalers.h"

namespace nanhunt::engine {

std::unique_ptr<LossScaler> make_scaler(const LightningScalerOptions&) {
  return std::make_unique<GradScaler>(GradScalerOptions{.family = "lightning (torch.amp)"});
}

}  // namespace nanhunt::engine
