// SPDX-License-Identifier: Apache-2.0
// Mixed precision as torch.amp does it. The engine's CPU device stands in for CUDA: its op lists, fp16 by default.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/engine/loss_scaler.h"
#include "nanhunt/engine/module.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"
#include "nanhunt/event.h"

namespace nanhunt::engine {

enum class CastLists : std::uint8_t {
  kTorch,  // torch.amp for CUDA
  kApex,   // Apex O1
};

struct AutocastOptions {
  bool enabled = true;
  DType dtype = DType::kF16;  // or kBF16
  bool cache = true;          // casts of fp32 parameters are made once per outermost region
  CastLists lists = CastLists::kTorch;
};

// An autocast region of this thread, from construction to destruction. Regions nest, the innermost one rules, and a
// disabled one inside an enabled one switches casting off. While it is enabled, out-of-place ops on the lists (the
// table in src/engine/amp/policy.cpp) cast their floating arguments other than fp64; each cast is observed as a
// "_to_copy" in the module that uses it. Wrap forward and loss, not backward.
//
// The cache keeps the cast of a parameter until the outermost region ends, so its gradient arrives through one
// "_to_copy_backward". Two hazards are those of torch.amp, on purpose: a cast made under NoGradGuard has no way back to
// its parameter, and one reused later in the region with gradients on drops that parameter's gradient silently; and a
// parameter written inside the region goes on being used as it was. clear_autocast_cache() helps against both.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastOptions previous_;
};

bool autocast_enabled();  // false also inside an op that was cast
DType autocast_dtype();
bool autocast_cache_enabled();
void clear_autocast_cache();

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  bool enabled = true;
  bool dynamic = true;  // false: the scale is constant, gradients are not checked, no step is held back
  std::string_view family = "torch.amp";  // whose scaler it is, where it is not torch's own; outlives the scaler
};

// torch.amp.GradScaler: the scale is fp32, backs off when a gradient is not finite, grows after an interval of clean
// updates. Nothing is guarded that torch does not guard: the scale may fall to 0, and an interval set at or below the
// tracker never fires.
//
// Misuse throws std::invalid_argument with torch's text, after observers were told. Observed as ops: "mul" in phase
// scale, "_amp_foreach_non_finite_check_and_unscale_" per gradient in phase unscale with the parameter's path as
// module, "_amp_update_scale_" in phase update.
class GradScaler : public LossScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  std::unique_ptr<LossScaler> clone() const override { return std::make_unique<GradScaler>(*this); }
  void put_back(const LossScaler& copy, double scale) override;

  // output * scale: fp32 for a 0-dim fp16 output, while one with dimensions stays fp16 and can overflow.
  Tensor scale(const Tensor& output) override;
  std::vector<Tensor> scale(const std::vector<Tensor>& outputs);
  using LossScaler::update;
  void update(double new_scale);  // sets the scale and leaves the tracker

  double get_scale() const override;  // 1 when disabled; as configured until scale() was called
  const Tensor& scale_tensor() const { return scale_; }  // undefined until scale() was called
  std::int64_t growth_tracker() const;
  bool is_enabled() const override { return options_.enabled; }
  const GradScalerOptions& options() const { return options_; }  // factors and interval as they are now
  void set_growth_factor(double factor) { options_.growth_factor = factor; }
  void set_backoff_factor(double factor) { options_.backoff_factor = factor; }
  void set_growth_interval(std::int64_t interval) { options_.growth_interval = interval; }

  // What torch's state_dict holds; none when disabled. Save after update().
  struct State {
    double scale = 65536, growth_factor = 2, backoff_factor = 0.5;
    std::int64_t growth_interval = 2000, growth_tracker = 0;
    bool operator==(const State&) const = default;
  };
  std::optional<State> state() const;
  void load_state(const std::optional<State>& state);
  Saved saved() const override;  // the same by name; empty when disabled
  void load(const Saved& saved) override;

 private:
  std::string next(bool found_inf) override;
  ScalerEvent described() const override;
  bool looks() const override { return options_.dynamic; }
  bool takes_fp16() const override { return false; }
  bool has_scale() const override { return scale_.defined(); }
  void set_scale(double value);

  GradScalerOptions options_;
  Tensor scale_;  // 0-dim fp32, from the first scale() on
  std::int32_t growth_tracker_ = 0;
};

std::unique_ptr<LossScaler> make_scaler(const GradScalerOptions& options);

// Multiplies the gradients by max_norm / (their total 2-norm + 1e-6) when that is below 1, in place: a total of
// Inf makes finite gradients 0 and infinite ones NaN, a total of NaN makes all NaN. Ops of phase clip, those of one
// gradient with its parameter's path as module. Returns the total norm; throws on one that is not finite if asked to.
double clip_grad_norm_(const std::vector<NamedTensor>& parameters, double max_norm, bool error_if_nonfinite = false);

}  // namespace nanhunt::engine
