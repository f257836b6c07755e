// SPDX-License-Identifier: Apache-2.0
// Apex's kernel for a scale with hysteresis, as NeMo's GradScaler calls it. It says nothing when a step is skipped.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class ApexHysteresis final : public Family<ApexHysteresis> {
 public:
  explicit ApexHysteresis(const ApexHysteresisScalerOptions& options)
      : options_(options), scale_(static_cast<float>(options.init_scale)), hysteresis_(options.hysteresis) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("growth_tracker", growth_tracker_);
    call("hysteresis_tracker", hysteresis_);
  }

 private:
  std::string next(bool found_inf) override {
    const auto times = [this](double factor) { return static_cast<float>(static_cast<double>(scale_) * factor); };
    if (found_inf) {
      growth_tracker_ = 0;
      if (--hysteresis_ <= 0) scale_ = times(options_.backoff_factor);
      return {};
    }
    hysteresis_ = options_.hysteresis;
    if (++growth_tracker_ != options_.growth_interval) return {};
    growth_tracker_ = 0;
    if (const float grown = times(options_.growth_factor); std::isfinite(grown)) scale_ = grown;
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
    event.text = "apex update_scale_hysteresis";
    return event;
  }

  ApexHysteresisScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0, hysteresis_;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const ApexHysteresisScalerOptions& options) {
  return std::make_unique<ApexHysteresis>(options);
}

}  // namespace nanhunt::engine
