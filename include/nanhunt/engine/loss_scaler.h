// SPDX-License-Identifier: Apache-2.0
// What every loss scaler shares, whichever library it comes from. A family of scalers is a class over this one, in a
// file of its own in src/engine/amp/scalers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/ranks.h"
#include "nanhunt/engine/tensor.h"
#include "nanhunt/event.h"

namespace nanhunt::engine {

// Which of a step's losses one is.
struct LossOfStep {
  std::uint32_t id = 0;  // libraries that have a scaler for each loss choose it by this
  bool last = true;      // the optimizer's step comes next
};

// A step is scale, backward, unscale_, step, update. What happens is told as ScalerEvents with the configuration in
// each; kCreate comes before the first that somebody hears. A call in the wrong order throws std::invalid_argument,
// after observers were told.
//
// 16-bit gradients of parameters with an fp32 master are widened and unscaled into the master's gradient (observed as
// "_to_copy", then the check, in the module of the parameter's path); the parameter's own stay scaled.
class LossScaler {
 public:
  virtual ~LossScaler() = default;
  virtual Tensor scale(const Tensor& output);  // fp32 output * scale
  // From here on an overflow that one of these ranks finds is one that all have found.
  void agree_over(std::shared_ptr<RankGroup> ranks) { ranks_ = std::move(ranks); }
  // Whether gradients are unscaled in backward() already, each loss for itself.
  virtual bool unscales_each_backward() const { return false; }

  // Scales a loss and runs its backward.
  virtual void backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep& which = {});
  // Checks the optimizer's gradients and divides them by the scale. At most once per step; step() does it if nobody did.
  virtual void unscale_(Optimizer& optimizer);
  // Clips what the optimizer will use by its total 2-norm, and returns that.
  virtual double clip(Optimizer& optimizer, double max_norm);
  // Runs the optimizer unless the family holds it back. True if it ran. Gradients are not cleared on a skip.
  virtual bool step(Optimizer& optimizer);
  // Once, after every optimizer's step. Throws std::runtime_error where the family gives training up.
  virtual void update();

  virtual double get_scale() const = 0;
  virtual bool is_enabled() const { return true; }
  // The numbers that change from step to step, by the family's own names; "scale" comes first. Save after update().
  using Saved = std::vector<std::pair<std::string, double>>;
  virtual Saved saved() const = 0;
  virtual void load(const Saved& saved) = 0;
  // What the family prints when an update found an overflow, in its own words; empty: nothing, or none was found.
  const std::string& message() const { return message_; }

 protected:
  LossScaler() = default;
  LossScaler(const LossScaler&) = default;
  LossScaler& operator=(const LossScaler&) = default;

  // What becomes of a step, given whether a gradient was not finite.
  enum class Use : std::uint8_t {
    kStep,
    kSkip,
    kStepWithoutGradients,  // the optimizer runs, and gets nothing new
  };
  virtual Use use_of(bool found_inf) const { return found_inf ? Use::kSkip : Use::kStep; }
  // The scale of the next step. Returns what message() says. May throw after it has changed nothing.
  virtual std::string next(bool found_inf) = 0;
  // Scale, growth tracker, hysteresis and configuration now; `text` is the name of the family.
  virtual ScalerEvent described() const = 0;
  // Checks and unscales all gradients; true if one was not finite, nullopt if there is none.
  virtual std::optional<bool> check_and_unscale(Optimizer& optimizer);
  // Whether what the check found matters. A static scale does not look.
  virtual bool looks() const { return true; }
  // Whether fp16 gradients may be unscaled in fp16 where the optimizer has no master for them.
  virtual bool takes_fp16() const { return true; }
  virtual bool has_scale() const { return true; }  // false: scale() must be called first

  // What the ranks have found together.
  bool agreed(bool found_inf) const;
  void tell(ScalerAction action, std::uint32_t optimizer = 0, bool found_inf = false, std::string_view text = {});
  [[noreturn]] void refuse(std::string_view text, std::uint32_t optimizer = 0);
  void expect_scale(std::string_view call, std::uint32_t optimizer = 0);
  void reset_stages();
  std::uint32_t number_of(const Optimizer& optimizer);  // in order of first use

  std::string message_;

 private:
  enum class Stage : std::uint8_t { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    std::optional<bool> found_inf;  // none: nothing was checked
  };
  struct Known {
    const Optimizer* optimizer;
    OptimizerState state;  // since the last update
  };
  std::vector<Known> known_;
  std::shared_ptr<RankGroup> ranks_;
  bool reported_ = false;  // somebody heard kCreate
};

}  // namespace nanhunt::engine
