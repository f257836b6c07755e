// SPDX-License-Identifier: Apache-2.0
// The scaler inside DeepSpeed's fused FP16_Optimizer. It grows one update later than the legacy rule of Apex.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class DeepSpeedFused final : public Family<DeepSpeedFused> {
 public:
  explicit DeepSpeedFused(const DeepSpeedFusedScalerOptions& options) : options_(options), scale_(options.init_scale) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("cur_iter", cur_iter_);
    call("last_overflow_iter", last_overflow_iter_);
  }

 private:
  std::string next(bool found_inf) override {
    const double attempted = scale_;
    if (found_inf) {
      scale_ = std::max(scale_ / options_.scale_factor, options_.min_scale);
      last_overflow_iter_ = cur_iter_;
    } else if (const std::int64_t clean = cur_iter_ - last_overflow_iter_ - 1;
               clean > 0 && clean % options_.scale_window == 0) {
      scale_ *= options_.scale_factor;
    }
    ++cur_iter_;
    if (!found_inf) return {};
    return fmt::format(
        "[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: {}, reducing to {}",
        python_text(attempted), python_text(scale_));
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = std::max<std::int64_t>(cur_iter_ - last_overflow_iter_ - 2, 0) % options_.scale_window;
    event.growth_factor = options_.scale_factor;
    event.backoff_factor = 1 / options_.scale_factor;
    event.growth_interval = options_.scale_window;
    event.text = "deepspeed, fused";
    return event;
  }

  DeepSpeedFusedScalerOptions options_;
  double scale_;
  std::int64_t cur_iter_ = 0, last_overflow_iter_ = -1;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const DeepSpeedFusedScalerOptions& options) {
  return std::make_unique<DeepSpeedFused>(options);
}

}  // namespace nanhunt::engine
