// SPDX-License-Identifier: Apache-2.0
// The dynamic scaler of Apex's first FP16_Optimizer.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class ApexLegacy final : public Family<ApexLegacy> {
 public:
  explicit ApexLegacy(const ApexLegacyScalerOptions& options) : options_(options), scale_(options.init_scale) {}

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
      scale_ = std::max(scale_ / options_.scale_factor, 1.0);
      last_overflow_iter_ = cur_iter_;
    } else if ((cur_iter_ - last_overflow_iter_) % options_.scale_window == 0) {
      scale_ *= options_.scale_factor;
    }
    ++cur_iter_;
    if (!found_inf) return {};
    return fmt::format("OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to {}", python_text(attempted),
                       python_text(scale_));
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = (cur_iter_ - 1 - last_overflow_iter_) % options_.scale_window;
    event.growth_factor = options_.scale_factor;
    event.backoff_factor = 1 / options_.scale_factor;
    event.growth_interval = options_.scale_window;
    event.text = "apex FP16_Optimizer";
    return event;
  }

  ApexLegacyScalerOptions options_;
  double scale_;
  std::int64_t cur_iter_ = 0, last_overflow_iter_ = -1;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const ApexLegacyScalerOptions& options) {
  return std::make_unique<ApexLegacy>(options);
}

}  // namespace nanhunt::engine
