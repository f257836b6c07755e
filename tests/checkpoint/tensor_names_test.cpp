// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/tensor_names.h"

#include <gtest/gtest.h>

namespace nanhunt::checkpoint {
namespace {

TEST(TensorNames, words_are_whole) {
  EXPECT_TRUE(has_whole_word("lora_A", {"lora"}));
  EXPECT_FALSE(has_whole_word("exploration", {"lora"}));
  EXPECT_TRUE(has_whole_word("act.max_val", {"min_val", "max_val"}));
  EXPECT_FALSE(has_whole_word("admin_value", {"min_val", "max_val"}));
  EXPECT_TRUE(is_range_name("bin_edges_0"));
  EXPECT_FALSE(is_range_name("edge_bias"));
  EXPECT_TRUE(is_loss_name("val_loss"));
  EXPECT_TRUE(is_loss_name("loss_ema"));
  EXPECT_FALSE(is_loss_name("loss_weights"));
  EXPECT_FALSE(is_loss_name("glossary"));
}

TEST(TensorNames, what_is_trained_is_known_by_its_last_part) {
  for (const char* name : {"weight", "weight_ih_l0", "in_proj_weight", "kernel", "cls_token", "mask_token", "gamma_1",
                           "logit_scale", "running_var", "lora_B", "in_proj_bias", "v_bias", "pos_embed"})
    EXPECT_TRUE(is_trained_name(name, 1)) << name;
  for (const char* name : {"attn_mask", "weight_mask", "attn_bias", "suppress_tokens", "edges", "m", "causal_bias"})
    EXPECT_FALSE(is_trained_name(name, 1)) << name;
  EXPECT_FALSE(is_trained_name("position_bias", 3));  // may be added to scores
}

TEST(TensorNames, a_state_is_an_optimizers_where_a_parameter_or_its_name_says_so) {
  for (const char* name : {"state.0.step", "optimizer.state.0.step", "optimizer.bin:state.fc.weight.step",
                           "optimizer_states.0.state.12.d"})
    EXPECT_TRUE(is_surely_optimizer_state(name)) << name;
  for (const char* name : {"trainer.state.best_metric", "state", "rng_state.0", "ema.0"})
    EXPECT_FALSE(is_surely_optimizer_state(name)) << name;
}

}  // namespace
}  // namespace nanhunt::checkpoint
