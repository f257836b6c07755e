// SPDX-License-Identifier: Apache-2.0
// Counters, buffers and weights of 16 bits that are added to in vain, and what does not count as such.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

Numbers one(double number, DType format = DType::kBF16) { return finite(1).as(format).range(number, number); }

// A counter of `format` that an optimizer raises by 1 each step, as far as the format can.
Analysis count(DType format, double start, double limit, int steps = 6) {
  TraceBuilder t;
  double now = start;
  Handle counter = t.value(one(now, format));
  for (int step = 0; step < steps; ++step) {
    t.step(static_cast<std::uint32_t>(step)).in("fc.weight", Phase::kOptimizer);
    now = std::min(now + 1, limit);
    t.in_place("add_", counter, {}, one(now, format), {{"other", 1.0}});
    t.end_step(2);
  }
  return analysis_of(t);
}

TEST(Standstill, of_a_counter_is_told_at_its_first_step) {
  const Analysis analysis = count(DType::kBF16, 253, 256);
  ASSERT_EQ(analysis.findings.size(), 1u);
  const Finding& f = analysis.findings.front();
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_EQ(f.place.step, 3u);
  EXPECT_EQ(f.occurrence_count, 3u);
  EXPECT_NE(f.title.find("256 + 1 is 256"), std::string::npos) << f.title;
}

TEST(Standstill, of_a_counter_that_moves_or_is_wide_is_none) {
  EXPECT_EQ(table(count(DType::kBF16, 3, 256)), "clean\n");
  EXPECT_EQ(table(count(DType::kF32, 253, 256)), "clean\n") << "of fp32 that is a limit of the program's own";
}

struct Moved {
  TensorRole role = TensorRole::kBuffer;
  Phase phase = Phase::kData;
  double updates = 64, lost = 64, share = 1;
  int steps = 6, from = 0;
  bool trained = false;  // an optimizer writes it as well
};
Analysis move(const Moved& given) {
  TraceBuilder t;
  Handle moved = t.value(finite(64).as(DType::kBF16));
  t.mark(given.role, "moved", moved);
  for (int step = 0; step < given.steps; ++step) {
    t.step(static_cast<std::uint32_t>(step));
    if (given.trained) t.in("moved", Phase::kOptimizer).in_place("mul_", moved, {}, finite(64).as(DType::kBF16), {{"other", 0.5}});
    const bool loses = step >= given.from;
    t.in("moved", given.phase);
    t.in_place("add_", moved, {{"other", t.value(finite(64))}}, finite(64).as(DType::kBF16),
               {{"nanhunt.updates", given.updates}, {"nanhunt.lost_updates", loses ? given.lost : 0},
                {"nanhunt.lost_update_share", loses ? given.share : 0}});
    t.end_step(2);
  }
  return analysis_of(t);
}

TEST(Standstill, of_a_buffer_is_told_after_five_steps_in_a_row) {
  const Analysis analysis = move({});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings.front().cls, FindingClass::kUpdateLoss);
  EXPECT_EQ(analysis.findings.front().severity, Severity::kWarning);
  EXPECT_EQ(table(move({.steps = 4})), "clean\n");
  EXPECT_EQ(table(move({.from = 3})), "clean\n");
  EXPECT_EQ(table(move({.lost = 40, .share = 0.6})), "clean\n") << "some of it moves";
  EXPECT_EQ(table(move({.lost = 60, .share = 0.1})), "clean\n") << "what matters of it moves";
}

TEST(Standstill, of_what_is_merged_into_weights_is_told_at_once_where_no_optimizer_trains_them) {
  const Moved merge = {.role = TensorRole::kParameter, .phase = Phase::kUpdate, .lost = 50, .share = 0.8, .steps = 1};
  ASSERT_EQ(move(merge).findings.size(), 1u);
  Moved trained = merge, kept = merge, few = merge;
  trained.trained = true;
  kept.lost = 20;
  few.updates = few.lost = 4;
  EXPECT_EQ(table(move(trained)), "clean\n");
  EXPECT_EQ(table(move(kept)), "clean\n");
  EXPECT_EQ(table(move(few)), "clean\n");
}

}  // namespace
}  // namespace nanhunt
