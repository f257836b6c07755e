// SPDX-License-Identifier: Apache-2.0
// Contents that changed although nothing that was watched wrote them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/record/rows/row_builder.h"
#include "tests/record/support.h"

namespace nanhunt::record {
namespace {

using testing::add_op;
using testing::TestTensor;

class ChangedTest : public ::testing::Test {
 protected:
  const RecordBatch& batch() const { return builder.rows().batch; }
  const ValueRecord& value(ValueId id) const {
    for (const ValueRecord& v : batch().values) {
      if (v.id == id) return v;
    }
    throw std::out_of_range("no such value");
  }
  RowBuilder builder{{}};
  TestTensor x{DType::kF32, {2, 2}, {1, 2, 3, 4}, 10}, y{DType::kF32, {2, 2}, {5, 6, 7, 8}, 11};
  TestTensor z{DType::kF32, {2, 2}, {6, 8, 10, 12}, 12};
};

TEST_F(ChangedTest, contents_that_differ_at_their_next_use_become_another_value) {
  // given: y is made by op 0 and read by op 1
  add_op(builder, "neg", {{"self", x}}, {{"out", y}});
  add_op(builder, "neg", {{"self", y}}, {{"out", z}});
  // when: a bit of it flips, and op 2 reads it
  y.corrupt(1, 1e30);
  add_op(builder, "exp", {{"self", y}}, {{"out", TestTensor(DType::kF32, {2, 2}, {1, 1, 1, 1}, 13)}});
  // then
  ASSERT_EQ(batch().changed.size(), 1u);
  const ChangedRecord& changed = batch().changed[0];
  EXPECT_EQ(changed.before, 2u);
  EXPECT_EQ(changed.since_seq, 1u);
  EXPECT_EQ(changed.since_step, 3u);
  EXPECT_EQ(changed.seq, 2u);
  EXPECT_EQ(changed.step, 3u);
  EXPECT_FALSE(changed.opaque);
  EXPECT_EQ(batch().inputs.back().value, changed.after);
  EXPECT_EQ(value(changed.after).storage, 11u);
  EXPECT_EQ(value(changed.after).producer, kNoSeq);
  EXPECT_FLOAT_EQ(static_cast<float>(value(changed.after).stats.amax), 1e30f);
  // ... and it is told once
  add_op(builder, "exp", {{"self", y}}, {{"out", TestTensor(DType::kF32, {2, 2}, {1, 1, 1, 1}, 14)}});
  EXPECT_EQ(batch().changed.size(), 1u);
  EXPECT_EQ(batch().inputs.back().value, changed.after);
}

TEST_F(ChangedTest, what_a_watched_op_wrote_is_no_change) {
  add_op(builder, "neg", {{"self", x}}, {{"out", y}});
  const TestTensor before = y;
  y.write({1, 1, 1, 1});
  add_op(builder, "fill_", {{"self", before.without_data(), ArgRole::kOverwritten}}, {{"out", y}});
  add_op(builder, "exp", {{"self", y}}, {{"out", z}});
  builder.add_mark({3, 0, TensorRole::kParameter, "w", y.value()});
  EXPECT_TRUE(batch().changed.empty());
}

TEST_F(ChangedTest, contents_that_are_gone_are_not_compared) {
  add_op(builder, "neg", {{"self", x}}, {{"out", y}});
  y.corrupt(0, -1);
  add_op(builder, "exp", {{"self", y.without_data()}}, {{"out", z}});
  EXPECT_TRUE(batch().changed.empty());
}

TEST_F(ChangedTest, a_mark_finds_a_change_too) {
  builder.add_mark({0, 0, TensorRole::kParameter, "w", x.value()});
  add_op(builder, "neg", {{"self", x}}, {{"out", y}});
  x.corrupt(3, 0);
  builder.add_mark({4, 0, TensorRole::kParameter, "w", x.value()});
  ASSERT_EQ(batch().changed.size(), 1u);
  EXPECT_EQ(batch().changed[0].since_seq, 0u);
  EXPECT_EQ(batch().changed[0].step, 4u);
  EXPECT_EQ(batch().marks.back().value, batch().changed[0].after);
}

TEST_F(ChangedTest, a_look_before_an_overwrite_finds_a_change_and_leaves_nothing_else) {
  builder.check(0, x.value());  // of which nothing is known
  EXPECT_TRUE(batch().values.empty());
  builder.add_mark({0, 0, TensorRole::kState, "w.exp_avg", x.value()});
  builder.check(1, x.value());
  EXPECT_EQ(batch().values.size(), 1u);
  x.corrupt(0, 1e30);
  builder.check(1, x.value());
  ASSERT_EQ(batch().changed.size(), 1u);
  EXPECT_EQ(batch().changed[0].before, 1u);
  EXPECT_EQ(batch().marks.size(), 1u);
}

TEST_F(ChangedTest, masks_and_indices_are_checked_and_zeros_have_signs) {
  TestTensor mask(DType::kBool, {2, 2}, {1, 0, 0, 1}, 20), index(DType::kI64, {2}, {0, 1}, 21);
  TestTensor zero(DType::kF16, {2}, {0, 1}, 22);
  auto use = [&] {
    add_op(builder, "index",
           {{"self", x}, {"mask", mask, ArgRole::kMask}, {"index", index, ArgRole::kIndex}, {"z", zero}},
           {{"out", TestTensor(DType::kF32, {2, 2}, {1, 1, 1, 1}, 30)}});
  };
  use();
  use();
  EXPECT_TRUE(batch().changed.empty());
  mask.corrupt(1, 1);
  index.corrupt(0, 7);
  zero.corrupt(0, -0.0);
  use();
  EXPECT_EQ(batch().changed.size(), 3u);
}

TEST_F(ChangedTest, a_view_seen_for_the_first_time_is_held_against_its_base) {
  add_op(builder, "neg", {{"self", x}}, {{"out", y}});
  add_op(builder, "mm", {{"self", y.t()}}, {{"out", z}});  // a transposed view: the same elements
  EXPECT_TRUE(batch().changed.empty());
  y.corrupt(2, 1e20);
  add_op(builder, "view", {{"self", y.view({4}, {1})}}, {{"out", TestTensor(DType::kF32, {4}, {1, 1, 1, 1}, 31)}});
  ASSERT_EQ(batch().changed.size(), 1u);
  EXPECT_EQ(batch().changed[0].before, 2u);
  EXPECT_FLOAT_EQ(static_cast<float>(value(batch().changed[0].after).stats.amax), 1e20f);
}

TEST_F(ChangedTest, a_view_that_is_seen_after_the_change_of_its_base_tells_it_no_second_time) {
  builder.add_mark({0, 0, TensorRole::kParameter, "w", x.value()});
  x.corrupt(3, 1e30);
  builder.add_mark({1, 0, TensorRole::kParameter, "w", x.value()});
  add_op(builder, "mm", {{"self", x.t()}}, {{"out", z}});
  EXPECT_EQ(batch().changed.size(), 1u);
  EXPECT_FLOAT_EQ(static_cast<float>(value(batch().inputs.back().value).stats.amax), 1e30f);
}

TEST_F(ChangedTest, a_change_that_a_hook_tells_leaves_no_view_its_old_statistics) {
  // given: a hook that looks for changes itself; w and its transposed view are known
  RowBuilder told{{.check_inputs = false}};
  told.add_mark({0, 0, TensorRole::kParameter, "w", x.value()});
  add_op(told, "mm", {{"self", x.t()}}, {{"out", z}});
  // when: w is changed past all that is watched, and the hook tells of it
  x.corrupt(3, std::numeric_limits<double>::quiet_NaN());
  told.add_changed({.step = 1, .value = x.value()});
  // then: known views and new ones are read again
  for (const TestTensor& view : {x.t(), x.view({4}, {1})}) {
    add_op(told, "mm", {{"self", view}}, {{"out", z}});
    const ValueId read = told.rows().batch.inputs.back().value;
    const auto& values = told.rows().batch.values;
    const auto row = std::find_if(values.begin(), values.end(), [&](const ValueRecord& v) { return v.id == read; });
    ASSERT_NE(row, values.end());
    EXPECT_EQ(row->stats.nan, 1);
    EXPECT_EQ(row->base, told.rows().batch.changed.at(0).after);
  }
}

TEST_F(ChangedTest, a_change_that_a_hook_tells_hides_nothing_beside_it) {
  // given: two halves of one storage
  RowBuilder told{{.check_inputs = false}};
  const TestTensor left = x.view({2}, {1}), right = x.view({2}, {1}, 2);
  told.add_mark({0, 0, TensorRole::kParameter, "left", left.value()});
  told.add_mark({0, 0, TensorRole::kParameter, "right", right.value()});
  // when: both are told to have changed
  told.add_changed({.step = 1, .value = left.value()});
  told.add_changed({.step = 1, .value = right.value()});
  // then: what each was is known
  ASSERT_EQ(told.rows().batch.changed.size(), 2u);
  EXPECT_EQ(told.rows().batch.changed[0].before, 1u);
  EXPECT_EQ(told.rows().batch.changed[1].before, 2u);
}

TEST_F(ChangedTest, strided_views_are_checked_element_by_element) {
  const TestTensor column = y.view({2}, {2});  // elements 0 and 2
  builder.add_mark({0, 0, TensorRole::kBuffer, "column", column.value()});
  y.corrupt(1, 99);  // lies between
  builder.add_mark({0, 0, TensorRole::kBuffer, "column", column.value()});
  EXPECT_TRUE(batch().changed.empty());
  y.corrupt(2, 99);
  builder.add_mark({0, 0, TensorRole::kBuffer, "column", column.value()});
  EXPECT_EQ(batch().changed.size(), 1u);
}

TEST_F(ChangedTest, nothing_is_checked_where_it_is_switched_off) {
  RowBuilder silent{{.check_inputs = false}};
  add_op(silent, "neg", {{"self", x}}, {{"out", y}});
  y.corrupt(0, 1e30);
  add_op(silent, "exp", {{"self", y}}, {{"out", z}});
  EXPECT_TRUE(silent.rows().batch.changed.empty());
}

TEST_F(ChangedTest, a_run_that_writes_unseen_as_a_habit_is_checked_no_longer) {
  for (std::uint32_t i = 0; i < 2 * kMaxChangesFound; ++i) {
    y.corrupt(0, i);
    builder.add_mark({i, 0, TensorRole::kParameter, "w", y.value()});
  }
  EXPECT_EQ(batch().changed.size(), kMaxChangesFound);
}

}  // namespace
}  // namespace nanhunt::record
