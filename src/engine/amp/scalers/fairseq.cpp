// SPDX-License-Identifier: Apache-2.0
// fairseq's DynamicLossScaler.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class Fairseq final : public Family<Fairseq> {
 public:
  explicit Fairseq(const FairseqScalerOptions& options) : options_(options), scale_(options.init_scale) {}

  double get_scale() const override { return scale_; }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("iter", iter_);
    call("last_overflow_iter", last_overflow_iter_);
    call("last_rescale_iter", last_rescale_iter_);
    call("overflows_since_rescale", overflows_);
  }

 private:
  std::string next(bool found_inf) override {
    if (found_inf) return after_overflow();
    if ((iter_ - last_overflow_iter_) % options_.scale_window == 0) {
      scale_ *= options_.scale_factor;
      last_rescale_iter_ = iter_;
    }
    ++iter_;
    return {};
  }

  std::string after_overflow() {
    const double attempted = scale_;
    const auto since = static_cast<double>(iter_ - last_rescale_iter_);
    last_overflow_iter_ = iter_;
    ++overflows_;
    if (static_cast<double>(overflows_) / since >= options_.tolerance) {
      scale_ = std::max(scale_ / options_.scale_factor, options_.threshold.value_or(0));
      last_rescale_iter_ = iter_;
      overflows_ = 0;
    }
    if (scale_ <= options_.min_loss_scale) {
      scale_ = attempted;
      throw std::runtime_error(fmt::format(
          "Minimum loss scale reached ({}). Your loss is probably exploding. Try lowering the learning rate, using "
          "gradient clipping or increasing the batch size.",
          options_.min_loss_scale == 1e-4 ? "0.0001" : python_text(options_.min_loss_scale)));
    }
    ++iter_;
    return "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: " + python_text(scale_);
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = (iter_ - 1 - last_overflow_iter_) % options_.scale_window;
    event.growth_factor = options_.scale_factor;
    event.backoff_factor = 1 / options_.scale_factor;
    event.growth_interval = options_.scale_window;
    event.hysteresis = tolerated();
    event.text = "fairseq";
    return event;
  }

  // Overflows from here on that the share allows, should they follow each other.
  std::uint32_t tolerated() const {
    std::uint32_t more = 0;
    if (options_.tolerance <= 0 || options_.tolerance >= 1) return 0;
    while (static_cast<double>(overflows_ + more + 1) / static_cast<double>(iter_ + more - last_rescale_iter_) <
           options_.tolerance) {
      ++more;
    }
    return more;
  }

  FairseqScalerOptions options_;
  double scale_;
  std::int64_t iter_ = 0, last_overflow_iter_ = -1, last_rescale_iter_ = -1, overflows_ = 0;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const FairseqScalerOptions& options) {
  return std::make_unique<Fairseq>(options);
}

}  // namespace nanhunt::engine
