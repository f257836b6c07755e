// SPDX-License-Identifier: Apache-2.0
// The op table answers for every way a name is written.
#include <gtest/gtest.h>

#include "src/core/ops/op_info.h"

namespace nanhunt {
namespace {

TEST(OpTable, finds_an_op_under_all_its_names) {
  for (const char* name : {"add", "add_", "aten::add", "aten::add_", "aten::add.Tensor"})
    EXPECT_EQ(op_info(name).name, "add") << name;
  EXPECT_EQ(op_info("_fused_adam_").name, "_fused_adam");
  EXPECT_EQ(op_info("_to_copy").name, "_to_copy");
  EXPECT_EQ(op_info("sqrt_backward").pole, Pole::kZero);
}

TEST(OpTable, knows_nothing_of_other_ops_and_does_not_fail) {
  for (const char* name : {"", "_", "__", "my_kernel", "my_kernel_backward", "_backward", "aten::", ".", "add__"}) {
    EXPECT_FALSE(op_info(name).known()) << name;
  }
}

TEST(OpTable, takes_the_gradient_of_a_listed_op_for_products_and_sums) {
  EXPECT_TRUE(op_info("addmm_backward").has(kArithmetic));
  EXPECT_TRUE(op_info("exp_backward").has(kAccumulates));
  EXPECT_EQ(op_info("exp_backward").pole, Pole::kNone);
}

TEST(OpTable, holds_every_op_once) {
  const std::span<const OpInfo> rows = op_rows();
  EXPECT_GT(rows.size(), 500U);
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows[i - 1].name, rows[i].name);
}

TEST(OpTable, gives_an_op_in_place_and_over_lists_the_rules_of_the_plain_one) {
  for (const char* name : {"mul", "mul_", "aten::mul_.Tensor", "_foreach_mul_.Scalar"}) {
    EXPECT_EQ(op_traits(name).flush, FlushRule::kProduct) << name;
    EXPECT_EQ(op_traits(name).elements, ElementMap::kElementwise) << name;
  }
  EXPECT_TRUE(op_traits("copy_").ignores_old);
  EXPECT_FALSE(op_traits("add_").ignores_old);
  // and its gradient only the elements
  EXPECT_EQ(op_traits("mul_backward").flush, FlushRule::kNotMeasured);
  EXPECT_EQ(op_traits("mul_backward").elements, ElementMap::kElementwise);
  EXPECT_FALSE(op_traits("copy_backward").ignores_old);
}

TEST(OpTable, tells_what_met_in_an_element_of_each_function_with_a_domain_or_a_limit) {
  for (const OpInfo& row : op_rows()) {
    if (!row.has(kElementwise) || !forward_op(row.name).empty()) continue;
    if (row.pole == Pole::kNone && row.bound != Bound::kExp) continue;
    EXPECT_EQ(row.elements, ElementMap::kElementwise) << row.name;
  }
}

TEST(OpTable, names_the_forward_op_of_a_gradient) {
  EXPECT_EQ(forward_op("sqrt_backward"), "sqrt");
  EXPECT_EQ(forward_op("sqrt"), "");
  EXPECT_EQ(forward_op(""), "");
}

}  // namespace
}  // namespace nanhunt
