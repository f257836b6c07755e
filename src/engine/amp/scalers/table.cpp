// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "nanhunt/engine/loss_scalers.h"

namespace nanhunt::engine {

std::span<const NamedScaler> named_scalers() {
  static const std::array kAll = {
      NamedScaler{"torch", "torch.amp.GradScaler", GradScalerOptions{}},
      NamedScaler{"static", "a constant scale of 512 that holds nothing back",
                  GradScalerOptions{.init_scale = 512, .dynamic = false}},
      NamedScaler{"lightning", "Lightning's 16-mixed: torch's scaler", LightningScalerOptions{}},
      NamedScaler{"apex", "Apex amp, dynamic", ApexScalerOptions{}},
      NamedScaler{"apex-static", "Apex amp, loss_scale=128", ApexScalerOptions{.loss_scale = 128}},
      NamedScaler{"apex-legacy", "Apex FP16_Optimizer, dynamic", ApexLegacyScalerOptions{}},
      NamedScaler{"apex-hysteresis", "Apex update_scale_hysteresis", ApexHysteresisScalerOptions{}},
      NamedScaler{"deepspeed", "DeepSpeed, dynamic with hysteresis", DeepSpeedScalerOptions{}},
      NamedScaler{"deepspeed-fused", "DeepSpeed's fused FP16_Optimizer", DeepSpeedFusedScalerOptions{}},
      NamedScaler{"fairseq", "fairseq's DynamicLossScaler", FairseqScalerOptions{}},
      NamedScaler{"megatron", "Megatron-LM's DynamicGradScaler with hysteresis", MegatronScalerOptions{}},
      NamedScaler{"fastai", "fastai v1, dynamic", FastaiScalerOptions{}},
      NamedScaler{"fastai-static", "fastai v1, static 512", FastaiScalerOptions{.dynamic = false}},
  };
  return kAll;
}

}  // namespace nanhunt::engine
