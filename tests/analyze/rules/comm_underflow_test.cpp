// SPDX-License-Identifier: Apache-2.0
// Gradients that become 0 around their sum over the ranks, and what does not count as such.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Exchange {
  DType dtype = DType::kF16;
  std::int64_t zeros = 2;           // of 100 gradients, on the way in
  std::int64_t zeros_before = 60;   // after the division
  std::int64_t zeros_after = -1;    // after the multiplication that follows the sum; -1: as many as before it
  int steps = 6;
};

Analysis exchanged(const Exchange& e) {
  TraceBuilder t;
  for (int step = 0; step < e.steps; ++step) {
    const Handle x = t.value(finite(100).as(DType::kF32));
    t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("mean", {{"self", x}}, finite(1)));
    const auto numbers = [&](std::int64_t zeros) { return finite(100).as(e.dtype).zeros(zeros); };
    const Handle gradient = t.value(numbers(e.zeros));
    Handle flat = t.in("", Phase::kComm).op("mul", {{"self", gradient}}, numbers(e.zeros_before), {{"other", 0.25}});
    t.in_place("c10d::allreduce_", flat, {}, numbers(e.zeros_before));
    const std::int64_t after = e.zeros_after < 0 ? e.zeros_before : e.zeros_after;
    t.op("mul", {{"self", flat}}, numbers(after), {{"other", 1}});
    t.end_step();
  }
  return analysis_of(t);
}

TEST(CommUnderflow, of_a_tenth_of_the_gradients_over_several_steps_is_a_warning_at_the_op_that_lost_them) {
  const Analysis a = exchanged({});
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  const Finding& f = a.findings[0];
  EXPECT_EQ(table(a), "warning underflow | mul | - | comm | step 0 | unknown | observed\n");
  EXPECT_EQ(f.title, "59% of the gradients vanish in fp16 before their sum over the ranks");
  EXPECT_EQ(f.occurrence_count, 6u);
  EXPECT_EQ(f.evidence.at(0), "In step 0 it lost 58 of 100 at once.");
  EXPECT_EQ(f.evidence.at(1), "It multiplies by 0.25: magnitudes up to 1.192e-7 become 0.");
  EXPECT_EQ(f.advice.at(0).id, "reduce-fp32");
}

TEST(CommUnderflow, of_all_gradients_is_a_fault) {
  const Analysis a = exchanged({.zeros_before = 100});
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  EXPECT_EQ(a.findings[0].severity, Severity::kFault);
  EXPECT_EQ(a.findings[0].title, "All of the gradients vanish in fp16 before their sum over the ranks");
}

TEST(CommUnderflow, after_the_sum_is_told_apart) {
  const Analysis a = exchanged({.zeros_before = 2, .zeros_after = 60});
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  EXPECT_EQ(a.findings[0].title, "59% of the gradients vanish in fp16 after their sum over the ranks");
}

TEST(CommUnderflow, is_not_told_of_zeros_that_came_in_few_losses_few_steps_or_fp32) {
  for (const Exchange& e : {Exchange{.zeros = 60}, Exchange{.zeros_before = 11}, Exchange{.steps = 4},
                            Exchange{.dtype = DType::kF32}}) {
    EXPECT_EQ(table(exchanged(e)), "clean\n");
  }
}

}  // namespace
}  // namespace nanhunt
