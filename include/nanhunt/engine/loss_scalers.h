// SPDX-License-Identifier: Apache-2.0
// The loss scalers of the libraries that people train with, by their own rules and defaults. torch's is in amp.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/loss_scaler.h"

namespace nanhunt::engine {

// Apex amp (LossScaler). A static scale never holds a step back.
struct ApexScalerOptions {
  std::optional<double> loss_scale = {};  // static; none: dynamic
  double init_scale = 65536;         // at most max_loss_scale
  std::int64_t scale_window = 2000;
  std::optional<double> min_loss_scale = {};  // 0 counts as none
  double max_loss_scale = 0x1p24;
  int loss_id = 0;  // in the message
};
// Apex fp16_utils (FP16_Optimizer, DynamicLossScaler), before amp. No cap.
struct ApexLegacyScalerOptions {
  double init_scale = 0x1p32, scale_factor = 2;
  std::int64_t scale_window = 1000;
};
// Apex's update_scale_hysteresis kernel: a clean update refills the hysteresis.
struct ApexHysteresisScalerOptions {
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 2000, hysteresis = 2;
};
// DeepSpeed (DynamicLossScaler), with the defaults of its configuration file. An overflow at the smallest scale ends
// training (std::runtime_error) unless told not to.
struct DeepSpeedScalerOptions {
  double init_scale = 65536, scale_factor = 2;
  std::int64_t scale_window = 1000;
  double min_scale = 1;
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;  // refilled by every clean update, not by growth alone
  bool raise_error_at_min_scale = true;
};
// DeepSpeed's fused FP16_Optimizer.
struct DeepSpeedFusedScalerOptions {
  double init_scale = 65536, scale_factor = 2;
  std::int64_t scale_window = 1000;
  double min_scale = 1;
};
// fairseq (DynamicLossScaler). Lowers the scale where the share of overflows since it last changed reaches `tolerance`;
// a scale at or below `min_loss_scale` ends training (std::runtime_error).
struct FairseqScalerOptions {
  double init_scale = 128, scale_factor = 2;
  std::int64_t scale_window = 2000;
  double tolerance = 0;
  std::optional<double> threshold = {};  // the scale does not go below it
  double min_loss_scale = 1e-4;
};
// Megatron-LM (DynamicGradScaler): all arithmetic in fp32; growth alone refills the hysteresis.
struct MegatronScalerOptions {
  double initial_scale = 0x1p32, min_scale = 1, growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 1000, hysteresis = 2;
};
// fastai v1 (MixedPrecision). Its optimizer runs in every step; after an overflow it gets no new gradients, and what
// it remembers (momentum) may still move weights. At a scale of 1 nothing is looked for, a static scale never looks.
struct FastaiScalerOptions {
  std::optional<double> loss_scale = {};  // none: 65536, static 512
  bool dynamic = true;
  std::int64_t max_noskip = 1000;
  double max_scale = 0x1p24;
};
// Lightning's "16-mixed": torch's scaler, by its defaults.
struct LightningScalerOptions {};

std::unique_ptr<LossScaler> make_scaler(const ApexScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const ApexLegacyScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const ApexHysteresisScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const DeepSpeedScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const DeepSpeedFusedScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const FairseqScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const MegatronScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const FastaiScalerOptions& options);
std::unique_ptr<LossScaler> make_scaler(const LightningScalerOptions& options);

// The options of any of them.
class ScalerChoice {
 public:
  template <typename Options>
    requires requires(const Options& options) { make_scaler(options); }
  ScalerChoice(const Options& options) : make_([options] { return make_scaler(options); }) {}
  std::unique_ptr<LossScaler> make() const { return make_(); }

 private:
  std::function<std::unique_ptr<LossScaler>()> make_;
};

// Each of them by the name that a user gives, with its defaults.
struct NamedScaler {
  std::string_view name, summary;
  ScalerChoice choice;
};
std::span<const NamedScaler> named_scalers();

}  // namespace nanhunt::engine
