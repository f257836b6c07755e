// SPDX-License-Identifier: Apache-2.0
// Adam with its state in fp16, where eps 1e-8 rounds to 0; or with fp32 state and no eps, where weights without
// gradient
// become 0/0. (fp16 state without eps is no form of it: there most zeros are lost squares, which is `underflow`.)
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  const bool left_out = draw.chance(0.3);
  const std::string algorithm = draw.one_of<const char*>({"adam", "adamw"});
  settings.regime = Regime::kF16Masters;  // the clean run keeps state in fp32
  settings.scaler = false;
  settings.optimizer = {.algorithm = algorithm, .lr = 1e-3, .fp32_masters = true};
  if (left_out && draw.chance(0.5)) settings.optimizer.impl = engine::OptimizerImpl::kFused;
  out.plan.spoil_settings = [left_out](Settings& s) {
    s.optimizer.fp32_masters = left_out;
    s.optimizer.eps = left_out ? 0 : 1e-8;
  };
  out.variant = left_out ? "no eps" : "eps lost";
  out.target.cls = left_out ? FindingClass::kDivideByZero : FindingClass::kEpsUnderflow;
  out.target.phase = Phase::kOptimizer;
  out.target.ops = {"addcdiv_", "_fused_adam_", "_fused_adamw_"};
  return out;
}

}  // namespace

extern const Family kAdamEps{
    "adam-eps",
    "for-loop Adam or AdamW with fp16 state, where eps rounds to 0; or with fp32 state and no eps",
    "`eps_underflow` (`divide_by_zero` without eps), optimizer, the first parameter at which it happens, "
    "`addcdiv_` or the fused update",
    plant};

}  // namespace nanhunt::campaign
