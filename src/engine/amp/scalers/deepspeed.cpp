// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's DynamicLossScaler.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class DeepSpeed final : public Family<DeepSpeed> {
 public:
  explicit DeepSpeed(const DeepSpeedScalerOptions& options)
      : options_(options), scale_(options.init_scale), hysteresis_(options.hysteresis) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("cur_iter", cur_iter_);
    call("last_overflow_iter", last_overflow_iter_);
    call("cur_hysteresis", hysteresis_);
  }

 private:
  std::string next(bool found_inf) override {
    std::string message;
    if (found_inf) {
      message = after_overflow();
      last_overflow_iter_ = cur_iter_;
    } else {
      const bool grows = (cur_iter_ - last_overflow_iter_) % options_.scale_window == 0;
      if (options_.consecutive_hysteresis || grows) hysteresis_ = options_.hysteresis;
      if (grows) scale_ *= options_.scale_factor;
    }
    ++cur_iter_;
    return message;
  }

  std::string after_overflow() {
    const double attempted = scale_;
    if (options_.hysteresis != 1 && hysteresis_ != 1) {
      --hysteresis_;
      return fmt::format(
          "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {:.0f}, but hysteresis is {}. Reducing "
          "hysteresis to {}",
          attempted, hysteresis_ + 1, hysteresis_);
    }
    if (scale_ == options_.min_scale && options_.raise_error_at_min_scale) {
      throw std::runtime_error("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
    }
    scale_ = std::max(scale_ / options_.scale_factor, options_.min_scale);
    return fmt::format("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {:.0f}, reducing to {:.0f}",
                       attempted, scale_);
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = (cur_iter_ - 1 - last_overflow_iter_) % options_.scale_window;
    event.growth_factor = options_.scale_factor;
    event.backoff_factor = 1 / options_.scale_factor;
    event.growth_interval = options_.scale_window;
    event.hysteresis = static_cast<std::uint32_t>(std::max<std::int64_t>(hysteresis_ - 1, 0));
    event.text = "deepspeed";
    return event;
  }

  DeepSpeedScalerOptions options_;
  double scale_;
  std::int64_t cur_iter_ = 0, last_overflow_iter_ = -1, hysteresis_;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const DeepSpeedScalerOptions& options) {
  return std::make_unique<DeepSpeed>(options);
}

}  // namespace nanhunt::engine
