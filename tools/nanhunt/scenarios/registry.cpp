// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace {

// One recipe of mixed precision, and the folder of its name.
struct Group {
  std::string_view recipe;
  std::vector<std::vector<Scenario> (*)()> files;
};

// The order of `train --list`.
std::vector<Group> groups() {
  return {
      {"fp32",
       {bad_batch, bad_weights, high_lr, log_negative, log_zero, masked_softmax, no_valid_label, sqrt_backward,
        vae_log_variance, where_branch}},
      {"16 bits throughout",
       {overflow_forward, bn_fp16_statistics, adam_eps, lost_updates, swallowed_inf, t5_feed_forward}},
      {"torch.amp", {scaler_calibration, scale_collapse, grad_underflow, clip_before_unscale, val_overflow}},
      {"Apex", {o2_no_masters, static_scale_too_high, two_losses_one_scaler, fp16_optimizer_clip}},
      {"DeepSpeed", {hysteresis_collapse}},
      {"fastai", {static_scale_unchecked, lr_finder_diverges}},
      {"Lightning", {sixteen_true_adam}},
      {"data parallel", {ddp_one_rank_overflows, predivide_underflow}},
  };
}

}  // namespace

std::span<const Scenario> all_scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> out;
    for (const Group& group : groups()) {
      for (const auto file : group.files) {
        for (Scenario& scenario : file()) {
          scenario.recipe = group.recipe;
          out.push_back(std::move(scenario));
        }
      }
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
