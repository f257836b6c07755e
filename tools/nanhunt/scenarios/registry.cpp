// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace {

// The order of `train --list`.
constexpr std::vector<Scenario> (*kFiles[])() = {
    adam_eps,           overflow_forward, sqrt_backward, bad_batch,  bad_weights,    log_negative,
    log_zero,           masked_softmax,   where_branch,  swallowed_inf, high_lr,     grad_underflow,
    scaler_calibration, scale_collapse,   clip_before_unscale, lost_updates, t5_feed_forward, no_valid_label,
    vae_log_variance,   static_scale_too_high, hysteresis_collapse, o2_no_masters,
    two_losses_one_scaler, fp16_optimizer_clip,
};

}  // namespace

std::span<const Scenario> all_scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> out;
    for (const auto file : kFiles) {
      for (Scenario& scenario : file()) out.push_back(std::move(scenario));
    }
    return out;
  }();
  return all;
}

const Scenario* find_scenario(std::string_view name) {
  for (const Scenario& scenario : all_scenarios()) {
    if (scenario.name == name) return &scenario;
  }
  return nullptr;
}

}  // namespace nanhunt::scenarios
