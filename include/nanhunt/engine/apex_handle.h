// SPDX-License-Identifier: Apache-2.0
// Apex's early interface, until March 2019: `amp_handle = amp.init()`, whose scale_loss unscales after each backward,
// and optimizers wrapped for several losses. Both are loss scalers: what happens is told as ScalerEvents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/loss_scaler.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct ApexInitOptions {
  bool enabled = true;  // false: losses are not scaled, nothing is checked, no op is cast
  bool enable_caching = true;
};

// What both share: scales of losses by Apex's rule (65536, doubled after 2000 clean updates up to 2^24), dynamic.
class ApexEarlyScaler : public LossScaler {
 public:
  ~ApexEarlyScaler() override;
  bool is_enabled() const override;
  bool unscales_each_backward() const override { return true; }
  void unscale_(Optimizer&) override {}  // each block has
  void update() override {}              // each block has
  double get_scale() const override;     // of the next loss
  Saved saved() const override;
  void load(const Saved& saved) override;

 protected:
  ApexEarlyScaler(bool enabled, std::uint32_t losses);
  ApexEarlyScaler(const ApexEarlyScaler& other);
  using Run = std::function<void(const Tensor& scaled)>;
  // loss * scale in the loss's own format, `run` of that, then all gradients that the optimizer has are checked and
  // divided, those of earlier blocks too, and the scale is updated. True if one was not finite.
  bool run_block(std::uint32_t loss_id, const Tensor& loss, Optimizer& optimizer, const Run& run);
  // One step, unless `skips`; then message() is Apex's.
  bool step_unless(bool skips, Optimizer& optimizer);

  struct State;
  std::unique_ptr<State> state_;

 private:
  std::string next(bool) override { return {}; }
  ScalerEvent described() const override;
};

class ApexWrappedOptimizer;

// amp.init(). Put Autocast(handle.casts()) around forward and loss: it stands for the patches. After a block with an
// overflow the next step of its optimizer is skipped. A block unscales gradients of earlier blocks of the step once
// more: for several losses wrap the optimizer. Apex warns of backward() of the unscaled loss in a block; this does not.
class ApexHandle : public ApexEarlyScaler {
 public:
  explicit ApexHandle(const ApexInitOptions& options = {});

  AutocastOptions casts() const;
  // `with amp_handle.scale_loss(loss, optimizer) as scaled: run(scaled)`. Throws std::invalid_argument in Apex's words
  // once an optimizer was wrapped.
  void scale_loss(const Tensor& loss, Optimizer& optimizer, const Run& run);
  void backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep& which = {}) override;
  bool step(Optimizer& optimizer) override;
  // The optimizer must outlive it.
  ApexWrappedOptimizer wrap_optimizer(Optimizer& optimizer, std::uint32_t num_loss = 1);

 private:
  ApexInitOptions options_;
  bool wrapped_ = false;
};

// Losses of one step, each with a scale of its own, in the order of their blocks; gradients add up unscaled. A step is
// skipped where any of its losses overflowed. Throws std::invalid_argument for more losses in a step than it is for.
class ApexWrappedOptimizer : public ApexEarlyScaler {
 public:
  void scale_loss(const Tensor& loss, const Run& run);
  bool step();
  void backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep& which = {}) override;
  bool step(Optimizer& optimizer) override;  // the one that it wraps

 private:
  friend class ApexHandle;
  ApexWrappedOptimizer(bool enabled, Optimizer& optimizer, std::uint32_t num_loss);
  Optimizer* optimizer_;
};

}  // namespace nanhunt::engine
