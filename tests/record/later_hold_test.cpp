// SPDX-License-Identifier: Apache-2.0
// Steps that are held, and of whose contents a device tells when the next ones run already.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/record/recorder.h"
#include "tests/record/deferred_support.h"

namespace nanhunt::record {
namespace {

class LaterHoldTest : public ::testing::Test {
 protected:
  NumberingRecorder& recorder() { return dynamic_cast<NumberingRecorder&>(*run.recorder); }
  // A step with one op, whose result a device will tell.
  void step(std::uint64_t number, const TestTensor& out, Phase phase = Phase::kForward) {
    recorder().on_hold(HoldAction::kHold);
    run.op("exp", {}, {{"out", Late{out, number}.value()}}, {}, 0, phase);
    recorder().on_hold(HoldAction::kLater);
  }
  void end(std::uint32_t number) {
    recorder().add_to_due_hold(true);
    recorder().on_step_end({.step = number});
    recorder().add_to_due_hold(false);
  }
  std::vector<std::uint64_t> storages() {
    std::vector<std::uint64_t> found;
    for (const ValueRecord& value : run.closed().values) found.push_back(value.storage);
    return found;
  }

  DeferredRun run;
  TestTensor a{DType::kF32, {2}, {1, 1}, 1}, b{DType::kF32, {2}, {1, kInf}, 2}, c{DType::kF32, {2}, {1, 1}, 3};
};

TEST_F(LaterHoldTest, are_due_in_their_order_when_all_of_them_has_come) {
  step(1, a);
  step(2, b);
  EXPECT_FALSE(recorder().is_hold_due());
  run.come({b, 2});
  EXPECT_FALSE(recorder().is_hold_due()) << "the first is on its way";
  run.come({a, 1});
  EXPECT_TRUE(recorder().is_hold_due());
  EXPECT_EQ(recorder().origins(), 0u) << "the second stands behind it";
  recorder().decide_hold(HoldAction::kDrop);
  EXPECT_TRUE(recorder().is_hold_due());
  EXPECT_EQ(recorder().origins(), 1u);
  recorder().decide_hold(HoldAction::kKeep);
  EXPECT_FALSE(recorder().is_hold_due());
  EXPECT_EQ(storages(), (std::vector<std::uint64_t>{2}));
}

TEST_F(LaterHoldTest, leave_what_is_told_of_them_before_what_comes_after_them) {
  step(1, a);
  step(2, b);
  run.come({a, 1});
  run.come({b, 2});
  end(0);
  recorder().decide_hold(HoldAction::kDrop);
  end(1);
  recorder().decide_hold(HoldAction::kKeep);
  const RecordBatch rows = run.closed();
  ASSERT_EQ(rows.steps.size(), 2u);
  ASSERT_EQ(rows.ops.size(), 1u);
  EXPECT_EQ(rows.steps[0].step, 0u);
}

TEST_F(LaterHoldTest, are_kept_where_nobody_decides_about_them_and_a_late_word_is_for_nobody_else) {
  step(1, a);
  run.come({a, 1});
  for (std::uint32_t i = 0; i < 12; ++i) run.end_step();
  EXPECT_TRUE(recorder().is_hold_due()) << "it was given up";
  step(2, c);
  run.come({c, 2});
  recorder().decide_hold(HoldAction::kDrop);
  recorder().decide_hold(HoldAction::kKeep);
  EXPECT_EQ(storages(), (std::vector<std::uint64_t>{1, 3}));
}

TEST_F(LaterHoldTest, are_kept_where_the_run_ends_before_anybody_decides) {
  step(1, a);
  step(2, b);
  run.come({a, 1});
  EXPECT_EQ(storages(), (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(LaterHoldTest, count_apart_what_the_optimizer_left_bad) {
  step(1, b);
  step(2, TestTensor(DType::kF32, {2}, {1, kNan}, 4), Phase::kOptimizer);
  run.come({b, 1});
  recorder().decide_hold(HoldAction::kDrop);
  EXPECT_EQ(recorder().origins_that_last(), 0u);
  run.come({TestTensor(DType::kF32, {2}, {1, kNan}, 4), 2});
  EXPECT_EQ(recorder().origins(), 2u);
  EXPECT_EQ(recorder().origins_that_last(), 1u);
}

}  // namespace
}  // namespace nanhunt::record
