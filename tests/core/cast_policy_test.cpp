// SPDX-License-Identifier: Apache-2.0
#include "src/core/ops/autocast/cast_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nanhunt {
namespace {

constexpr CastList kLists[] = {CastList::kTorchCuda, CastList::kTorchCpu, CastList::kApex};

TEST(CastPolicy, answers_for_ops_that_the_engine_does_not_have) {
  EXPECT_EQ(cast_policy("lstm_cell", CastList::kTorchCuda), CastPolicy::kLow);
  EXPECT_EQ(cast_policy("linalg_svd", CastList::kTorchCpu), CastPolicy::kFp32);
  EXPECT_EQ(cast_policy("local_response_norm", CastList::kApex), CastPolicy::kFp32);
  for (const CastList list : kLists) EXPECT_EQ(cast_policy("no_such_op", list), std::nullopt);
}

TEST(CastPolicy, is_not_the_same_on_both_devices) {
  EXPECT_EQ(cast_policy("prod", CastList::kTorchCuda), CastPolicy::kFp32Output);
  EXPECT_EQ(cast_policy("prod", CastList::kTorchCpu), CastPolicy::kFp32);
  EXPECT_EQ(cast_policy("softmax", CastList::kTorchCuda), CastPolicy::kFp32Output);
  EXPECT_EQ(cast_policy("softmax", CastList::kTorchCpu), std::nullopt);
  EXPECT_EQ(cast_policy("cat", CastList::kTorchCuda), std::nullopt);
  EXPECT_EQ(cast_policy("cat", CastList::kTorchCpu), CastPolicy::kPromote);
  EXPECT_EQ(cast_policy("binary_cross_entropy", CastList::kTorchCuda), CastPolicy::kBanned);
  EXPECT_EQ(cast_policy("binary_cross_entropy", CastList::kTorchCpu), CastPolicy::kFp32);
}

TEST(CastPolicy, tells_overloads_apart) {
  EXPECT_EQ(cast_policy("norm", CastList::kTorchCuda), CastPolicy::kAppendDtype);
  EXPECT_EQ(cast_policy("norm.Scalar", CastList::kTorchCuda), CastPolicy::kAppendDtype);
  EXPECT_EQ(cast_policy("norm.ScalarOpt_dtype", CastList::kTorchCuda), std::nullopt) << "the caller named a dtype";
  EXPECT_EQ(cast_policy("sum.default", CastList::kTorchCuda), CastPolicy::kFp32Output);
  EXPECT_EQ(cast_policy("sum.IntList_out", CastList::kTorchCuda), std::nullopt);
  EXPECT_EQ(cast_policy("sum.dim", CastList::kTorchCuda), std::nullopt) << "no part of a name";
}

TEST(CastPolicy, names_each_op_once_in_order) {
  for (const CastList list : kLists) {
    const auto rows = cast_rows(list);
    EXPECT_GT(rows.size(), 60U);
    const auto twice = std::ranges::adjacent_find(rows, std::ranges::greater_equal{}, &CastRow::op);
    EXPECT_TRUE(twice == rows.end()) << twice->op;
    for (const CastRow& row : rows) EXPECT_EQ(cast_policy(row.op, list), row.policy) << row.op;
  }
}

}  // namespace
}  // namespace nanhunt
