// SPDX-License-Identifier: Apache-2.0
// One function per scenario file; registry.cpp lists them by recipe.
#pragma once

#include <vector>

#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::scenarios {

// fp32/
std::vector<Scenario> bad_batch();
std::vector<Scenario> bad_weights();
std::vector<Scenario> high_lr();
std::vector<Scenario> log_negative();
std::vector<Scenario> log_zero();
std::vector<Scenario> masked_softmax();
std::vector<Scenario> no_valid_label();
std::vector<Scenario> sqrt_backward();
std::vector<Scenario> vae_log_variance();
std::vector<Scenario> where_branch();

// sixteen_bits/
std::vector<Scenario> adam_eps();  // and adam-eps-raised
std::vector<Scenario> bn_fp16_statistics();
std::vector<Scenario> lost_updates();
std::vector<Scenario> overflow_forward();
std::vector<Scenario> swallowed_inf();
std::vector<Scenario> t5_feed_forward();

// torch_amp/
std::vector<Scenario> clip_before_unscale();
std::vector<Scenario> grad_underflow();
std::vector<Scenario> scale_collapse();
std::vector<Scenario> scaler_calibration();
std::vector<Scenario> val_overflow();

// apex/
std::vector<Scenario> fp16_optimizer_clip();
std::vector<Scenario> o2_no_masters();
std::vector<Scenario> static_scale_too_high();
std::vector<Scenario> two_losses_one_scaler();

// deepspeed/
std::vector<Scenario> hysteresis_collapse();

// fastai/
std::vector<Scenario> lr_finder_diverges();
std::vector<Scenario> static_scale_unchecked();

// lightning/
std::vector<Scenario> sixteen_true_adam();

// ranks/
std::vector<Scenario> ddp_one_rank_overflows();
std::vector<Scenario> predivide_underflow();

}  // namespace nanhunt::scenarios
