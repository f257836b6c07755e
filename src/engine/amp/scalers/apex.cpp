// SPDX-License-Identifier: Apache-2.0
// Apex amp's LossScaler.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class Apex final : public Family<Apex> {
 public:
  explicit Apex(const ApexScalerOptions& options)
      : options_(options), scale_(options.loss_scale.value_or(std::min(options.max_loss_scale, options.init_scale))) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("unskipped", unskipped_);
  }

 private:
  bool dynamic() const { return !options_.loss_scale; }
  bool looks() const override { return dynamic(); }

  std::string next(bool found_inf) override {
    if (found_inf) {
      scale_ = std::max(scale_ / 2, options_.min_loss_scale.value_or(0));
      unskipped_ = 0;
    } else {
      ++unskipped_;
    }
    if (dynamic() && unskipped_ == options_.scale_window) {
      scale_ = std::min(options_.max_loss_scale, scale_ * 2);
      unskipped_ = 0;
    }
    if (!found_inf) return {};
    return fmt::format("Gradient overflow.  Skipping step, loss scaler {} reducing loss scale to {}", options_.loss_id,
                       python_text(scale_));
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = unskipped_;
    event.dynamic = dynamic();
    event.growth_factor = dynamic() ? 2 : 1;
    event.backoff_factor = dynamic() ? 0.5 : 1;
    event.growth_interval = options_.scale_window;
    event.text = dynamic() ? "apex.amp" : "apex.amp, static";
    return event;
  }

  ApexScalerOptions options_;
  double scale_;
  std::int64_t unskipped_ = 0;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const ApexScalerOptions& options) { return std::make_unique<Apex>(options); }

}  // namespace nanhunt::engine
