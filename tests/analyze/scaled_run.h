// SPDX-License-Identifier: Apache-2.0
// Traces of a layer that trains under a loss scaler.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt::testing_support {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

struct StepPlan {
  double fits = 4096;            // gradients overflow above this scale
  bool forward_inf = false;      // the layer's output passes 65504
  bool pole = false;             // backward divides by 0
  bool indeterminate = false;    // a derivative that is 0/0 inside
  bool kept = false;             // gradients of the step before are added to
  bool buffer_inf = false;       // the bad gradient is written to a buffer
  bool gives_up = false;         // the scaler's library ends training at this overflow
  bool ends = true;
};

// A torch-like scaler and a model of one layer in fp16.
class ScaledRun {
 public:
  explicit ScaledRun(double scale = 65536, bool dynamic = true, std::uint32_t patience = 0)
      : hysteresis(patience), scale_(scale), dynamic_(dynamic) {
    ScalerRecord made = record(ScalerAction::kCreate);
    made.dynamic = dynamic;
    made.growth_factor = 2;
    made.backoff_factor = 0.5;
    made.growth_interval = interval;
    t.scaler(made, dynamic ? "torch.amp" : "static");
    weight_ = t.value(finite());
    t.mark(TensorRole::kParameter, "fc.weight", weight_);
  }

  static constexpr std::int64_t interval = 2000;

  void forward(const StepPlan& s) {
    const Handle x = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-300, 300));
    const Handle w = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-300, 300));
    const Numbers h16 = finite(64).as(DType::kF16);
    hidden_ = t.in("fc").op("mm", {{"self", x}, {"mat2", w}}, s.forward_inf ? h16.inf(2) : h16);
    loss_ = t.in("<loss>", Phase::kLoss).op("mean", {{"self", hidden_}}, s.forward_inf ? finite(1).inf(1) : finite(1));
    t.mark(TensorRole::kLoss, "loss", loss_);
  }

  // True: the step went through.
  bool step(const StepPlan& s = {}) {
    forward(s);
    t.scaler(record(ScalerAction::kScale));
    const Handle scaled = t.in("<loss>", Phase::kScale)
                              .op("mul", {{"self", loss_}}, s.forward_inf ? finite(1).inf(1) : finite(1),
                                  {{"other", scale_}});
    const bool over = scale_ > s.fits;
    const Numbers g16 = finite(64).as(DType::kF16).range(-6e4, 6e4);
    t.in("fc", Phase::kBackward);
    Handle d = t.op("mul_backward", {{"grad_output", scaled}}, s.forward_inf ? g16.nan(64) : over ? g16.inf(3) : g16);
    bool bad = over || s.forward_inf;
    if (s.pole) {
      d = t.op("div_backward", {{"grad_output", d}, {"other", t.value(finite(64).as(DType::kF16).zeros(1))}},
               g16.nan(1));
      bad = true;
    }
    if (s.indeterminate) {
      d = t.op("std_backward", {{"grad_output", d}, {"self", t.value(finite(64).zeros(64).range(0, 0))}},
               finite(64).nan(64));
      bad = true;
    }
    Handle g = t.op("mm_backward", {{"grad_output", d}}, bad ? finite().nan(2).inf(1) : finite());
    if (s.kept) {
      t.in_place("add_", gradient_, {{"other", g}}, bad || gradient_bad_ ? finite().nan(2).inf(1) : finite());
      bad = bad || gradient_bad_;
      g = gradient_;
    }
    gradient_ = g;
    gradient_bad_ = bad;
    if (s.buffer_inf) {
      const Handle b = t.op("mul", {{"self", g}}, finite().nan(1), {{"other", 1}});
      t.mark(TensorRole::kBuffer, "fc.seen", b);
    }
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", gradient_);
    ScalerRecord unscale = record(ScalerAction::kUnscale);
    unscale.found_inf = bad;
    t.scaler(unscale);
    t.in("", Phase::kUnscale)
        .in_place("_amp_foreach_non_finite_check_and_unscale_", gradient_, {},
                  bad ? finite().nan(2).inf(1) : finite(), {{"inv_scale", 1 / scale_}});
    t.scaler(record(bad ? ScalerAction::kSkip : ScalerAction::kStep));
    if (!bad) {
      t.in("fc.weight", Phase::kOptimizer).in_place("add_", weight_, {{"other", gradient_}}, finite(), {{"alpha", -1}});
      t.mark(TensorRole::kParameter, "fc.weight", weight_);
    }
    const double used = scale_;
    if (dynamic_ && bad && hysteresis > 0) {
      --hysteresis;
    } else if (dynamic_ && bad && !s.gives_up) {
      scale_ = std::max(scale_ / 2, floor);
    }
    tracker = bad ? 0 : tracker + 1;
    ScalerRecord update = record(s.gives_up ? ScalerAction::kGaveUp : ScalerAction::kUpdate);
    update.found_inf = bad;
    t.scaler(update, s.gives_up ? "cannot decrease scale anymore" : "");
    if (s.ends) t.end_step(s.forward_inf ? kInf : 1, used, bad);
    return !bad;
  }
  void steps(int count, const StepPlan& s = {}) {
    for (int i = 0; i < count; ++i) step(s);
  }
  ScalerRecord record(ScalerAction action) const {
    ScalerRecord r;
    r.action = action;
    r.scale = scale_;
    r.growth_interval = interval;
    r.growth_tracker = tracker;
    r.hysteresis = hysteresis;
    return r;
  }

  TraceBuilder t;
  double floor = 0;
  std::int64_t tracker = 0;
  std::uint32_t hysteresis;  // overflows that do not lower the scale

 private:
  double scale_;
  bool dynamic_;
  Handle weight_, hidden_, loss_, gradient_;
  bool gradient_bad_ = false;
};

inline std::string text_of(const Finding& f) {
  std::string out = f.title + " " + f.explanation;
  for (const std::string& line : f.evidence) out += " " + line;
  return out;
}

}  // namespace nanhunt::testing_support
