// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's DynamicGradScaler. It says nothing when a step is skipped; its log counts skipped iterations.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class Megatron final : public Family<Megatron> {
 public:
  explicit Megatron(const MegatronScalerOptions& options)
      : options_(options), scale_(static_cast<float>(options.initial_scale)), hysteresis_(options.hysteresis) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("growth_tracker", growth_tracker_);
    call("hysteresis_tracker", hysteresis_);
  }

 private:
  std::string next(bool found_inf) override {
    if (found_inf) {
      growth_tracker_ = 0;
      if (--hysteresis_ > 0) return {};
      scale_ = std::max(scale_ * static_cast<float>(options_.backoff_factor), static_cast<float>(options_.min_scale));
      return {};
    }
    if (++growth_tracker_ != options_.growth_interval) return {};
    growth_tracker_ = 0;
    hysteresis_ = options_.hysteresis;
    scale_ *= static_cast<float>(options_.growth_factor);
    return {};
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = growth_tracker_;
    event.growth_factor = options_.growth_factor;
    event.backoff_factor = options_.backoff_factor;
    event.growth_interval = options_.growth_interval;
    event.hysteresis = static_cast<std::uint32_t>(std::max<std::int64_t>(hysteresis_ - 1, 0));
    event.text = "megatron";
    return event;
  }

  MegatronScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0, hysteresis_;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const MegatronScalerOptions& options) {
  return std::make_unique<Megatron>(options);
}

}  // namespace nanhunt::engine
