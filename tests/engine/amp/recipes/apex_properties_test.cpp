// SPDX-License-Identifier: Apache-2.0
// Apex's property table, its overrides, and what it refuses in which words.
#include <gtest/gtest.h>

#include <stdexcept>

#include "nanhunt/engine/recipes.h"

namespace nanhunt::engine {
namespace {

std::string refusal_of(const ApexOptions& options) {
  try {
    apex_properties(options);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "";
}

TEST(ApexProperties, of_the_four_levels_are_those_of_apex) {
  const ApexProperties o0{.opt_level = "O0", .cast_model_type = DType::kF32, .master_weights = false, .loss_scale = 1};
  const ApexProperties o1{.opt_level = "O1", .patch_torch_functions = true};
  const ApexProperties o2{
      .opt_level = "O2", .cast_model_type = DType::kF16, .keep_batchnorm_fp32 = true, .master_weights = true};
  const ApexProperties o3{.opt_level = "O3",
                          .cast_model_type = DType::kF16,
                          .keep_batchnorm_fp32 = false,
                          .master_weights = false,
                          .loss_scale = 1};
  EXPECT_EQ(apex_properties({.opt_level = "O0"}), o0);
  EXPECT_EQ(apex_properties({}), o1);
  EXPECT_EQ(apex_properties({.opt_level = "O2"}), o2);
  EXPECT_EQ(apex_properties({.opt_level = "O3"}), o3);
}

TEST(ApexProperties, are_overridden_by_what_is_given) {
  const ApexProperties changed = apex_properties({.opt_level = "O2",
                                                  .cast_model_type = DType::kF32,
                                                  .patch_torch_functions = false,
                                                  .keep_batchnorm_fp32 = false,
                                                  .master_weights = false,
                                                  .loss_scale = 128.0});
  EXPECT_EQ(changed, (ApexProperties{.opt_level = "O2",
                                     .cast_model_type = DType::kF32,
                                     .keep_batchnorm_fp32 = false,
                                     .master_weights = false,
                                     .loss_scale = 128}));
  // and what O1 allows
  EXPECT_EQ(apex_properties({.cast_model_type = DType::kF32}).cast_model_type, DType::kF32);
  EXPECT_EQ(apex_properties({.patch_torch_functions = false}).patch_torch_functions, false);
}

TEST(ApexProperties, take_batch_norm_and_loss_scale_as_text) {
  EXPECT_EQ(apex_properties({.opt_level = "O3", .keep_batchnorm_fp32 = "True"}).keep_batchnorm_fp32, true);
  EXPECT_EQ(apex_properties({.opt_level = "O2", .keep_batchnorm_fp32 = "False"}).keep_batchnorm_fp32, false);
  EXPECT_EQ(apex_properties({.opt_level = "O2", .loss_scale = "128.0"}).loss_scale, 128);
  EXPECT_EQ(apex_properties({.opt_level = "O3", .loss_scale = "dynamic"}).loss_scale, std::nullopt);
}

TEST(ApexProperties, refuse_in_the_words_of_apex) {
  EXPECT_EQ(refusal_of({.opt_level = "02"}),
            "Unexpected optimization level 02. Options are 'O0', 'O1', 'O2', 'O3'.");
  EXPECT_EQ(refusal_of({.cast_model_type = DType::kF16}),
            "O1 inserts casts around Torch functions rather than model weights, so with O1, the model weights themselves "
            "should remain FP32. If you wish to cast the model to a different type, use opt_level='O2' or 'O3'. "
            "cast_model_type was torch.float16");
  // though the casts were switched off
  EXPECT_NE(refusal_of({.cast_model_type = DType::kF16, .patch_torch_functions = false}), "");
  for (const char* level : {"O0", "O2", "O3"}) {
    EXPECT_EQ(refusal_of({.opt_level = level, .patch_torch_functions = true}),
              "Currently, patch_torch_functions=True should only be set by selecting opt_level='O1'.");
  }
  EXPECT_EQ(refusal_of({.keep_batchnorm_fp32 = false}),
            "With opt_level O1, batchnorm functions are automatically patched to run in FP32, so keep_batchnorm_fp32 "
            "should be None. keep_batchnorm_fp32 was False");
  EXPECT_EQ(refusal_of({.opt_level = "O2", .keep_batchnorm_fp32 = "yes"}),
            "keep_batchnorm_fp32 must be a boolean, the string 'True' or 'False', or None, found "
            "keep_batchnorm_fp32=yes");
  EXPECT_EQ(refusal_of({.master_weights = false}),
            "It doesn't make sense to use master_weights with O1. With O1, your model weights themselves should be "
            "FP32.");
  EXPECT_EQ(refusal_of({.opt_level = "O2", .loss_scale = "high"}), "could not convert string to float: 'high'");
}

TEST(ApexProperties, refuse_nothing_where_amp_is_not_enabled) {
  EXPECT_EQ(refusal_of({.enabled = false, .opt_level = "02"}), "");
}

TEST(ApexProperties, are_printed_as_apex_prints_them) {
  EXPECT_EQ(apex_properties_text(apex_properties({.opt_level = "O2"})),
            "enabled                : True\n"
            "opt_level              : O2\n"
            "cast_model_type        : torch.float16\n"
            "patch_torch_functions  : False\n"
            "keep_batchnorm_fp32    : True\n"
            "master_weights         : True\n"
            "loss_scale             : dynamic\n");
  EXPECT_EQ(apex_properties_text(apex_properties({.loss_scale = 128.0})),
            "enabled                : True\n"
            "opt_level              : O1\n"
            "cast_model_type        : None\n"
            "patch_torch_functions  : True\n"
            "keep_batchnorm_fp32    : None\n"
            "master_weights         : None\n"
            "loss_scale             : 128.0\n");
}

}  // namespace
}  // namespace nanhunt::engine
