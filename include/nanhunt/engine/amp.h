// SPDX-License-Identifier: Apache-2.0
// Mixed precision as torch.amp does it. The engine's CPU device stands in for CUDA: its op lists, fp16 by default.
#pragma once

#include <array>
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
  kTorch,  // torch.amp's of the region's device
  kApex,   // Apex O1
};
// For which device type torch.amp's lists are. Tensors do not say for which one they stand: it is that of the innermost
// enabled region.
enum class AutocastDevice : std::uint8_t { kCuda, kCpu };

struct AutocastOptions {
  bool enabled = true;
  std::optional<DType> dtype = {};  // kF16 or kBF16; none: the device's as it is, first fp16 for CUDA, bf16 for the CPU
  std::optional<bool> cache = {};   // fp32 parameters are cast once per outermost region; none: as it is, at first on
  CastLists lists = CastLists::kTorch;
  AutocastDevice device = AutocastDevice::kCuda;
  // A fault to plant, PyTorch's until December 2025: a cast cached under NoGradGuard has no way back to its parameter, so
  // one that is reused with gradients on drops that parameter's gradient silently. Torch now makes it with gradients on.
  bool cache_drops_gradients = false;
};

// What a thread's regions have set.
struct AutocastState {
  std::array<bool, 2> enabled = {};  // by AutocastDevice
  std::array<DType, 2> dtypes = {DType::kF16, DType::kBF16};
  AutocastDevice device = AutocastDevice::kCuda;  // whose lists and format count
  CastLists lists = CastLists::kTorch;
  bool cache = true;
  bool cache_drops_gradients = false;
};

// An autocast region of this thread, from construction to destruction. Regions nest, the innermost one rules, and a
// disabled one inside an enabled one switches casting off for its device. While it is enabled, out-of-place ops on the
// lists (src/core/ops/autocast) cast their floating arguments other than fp64; each cast is observed as a "_to_copy" in
// the module that uses it. Wrap forward and loss, not backward (which casts nothing here even then; torch's would). For
// CUDA binary_cross_entropy is banned, in torch's words. Another format than fp16 and bf16 throws std::invalid_argument
// for CUDA; for the CPU the region warns and stays off.
//
// The cache keeps the cast of a parameter until the outermost region ends, so its gradient arrives through one
// "_to_copy_backward". Two hazards are those of torch.amp, on purpose: a parameter written inside the region goes on
// being used as it was; and an inner region of the other 16-bit format gets the cast of the outer one, which the op then
// refuses. clear_autocast_cache() helps against both. Apex makes a cast again that gradients do not find back through.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  const std::string& warning() const { return warning_; }  // torch's, where it stayed off; else empty

 private:
  AutocastState previous_;
  bool was_on_;
  std::string warning_;
};

AutocastState autocast_state();
bool autocast_enabled();  // for the device that counts; false also inside an op that was cast
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
