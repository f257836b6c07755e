// SPDX-License-Identifier: Apache-2.0
// A loss scaler that a program wrote for itself: no record tells of it, only what it does to the loss and to gradients.
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Own {
  double fits = 4096;          // gradients overflow above this scale
  bool divides = true;         // what goes through is divided by the scale
  bool as_tensor = false;      // the scale is a tensor
  double off = 1;              // gradients are divided by this many times the scale
  bool stays = false;          // the scale is the same for ever
  bool in_fp16 = false;        // the scaled loss is stored in fp16, and is what overflows
  bool clips = false;          // gradients are multiplied by a limit over their norm before they are unscaled
  double norm = 500;           // ... which is this
  bool weighs = false;         // the function that multiplies the loss by the scale weighs a term of it, too
  std::uint32_t ranks = 0;     // gradients are added up over so many
  bool singular = false;       // gradients are bad at any scale from step 2 on
};

// The scale it ends with.
double train(TraceBuilder& t, const Own& own, double scale, int steps) {
  for (int step = 0; step < steps; ++step) {
    const bool pole = own.singular && step >= 2;
    const bool over = pole || scale > own.fits;
    const Handle h = t.in("fc").op("mm", {{"self", t.value(finite(64))}}, finite(64));
    const Handle loss =
        t.in("<loss>", Phase::kLoss).called_from("train.py:9").op("mean", {{"self", h}}, finite(1).range(15, 15));
    t.called_from("train.py:10");
    if (own.weighs && step % 2 == 1) t.op("mul", {{"self", loss}}, finite(1), {{"other", 0.01}});
    const Numbers one = finite(1).range(scale, scale);
    const Numbers number = !own.in_fp16 ? finite(1)
                           : over       ? finite(1).as(DType::kF16).inf(1)
                                        : finite(1).as(DType::kF16);
    const Handle scaled = own.as_tensor ? t.op("mul", {{"self", loss}, {"other", t.value(one)}}, number)
                                        : t.op("mul", {{"self", loss}}, number, {{"other", scale}});
    t.mark(TensorRole::kLoss, "loss", scaled);
    const Numbers g16 = finite(64).as(DType::kF16).range(-6e4, 6e4);
    Handle d = t.in("fc", Phase::kBackward).called_from("").op("mul_backward", {{"grad_output", scaled}}, over && !pole ? g16.inf(3) : g16);
    if (pole) d = t.op("div_backward", {{"grad_output", d}, {"other", t.value(finite(64).zeros(1))}}, finite(64).nan(1));
    Handle g = t.op("mm_backward", {{"grad_output", d}}, over ? finite().nan(2).inf(1) : finite());
    if (over) {
      t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
      t.give_up(StepEnding::kNextForward, "", /*skipped=*/true);
      if (!own.stays) scale /= 2;
      continue;
    }
    if (own.clips) {
      const Numbers size = finite(1).range(own.norm, own.norm);
      const Handle norm = t.in("", Phase::kClip).op("linalg_vector_norm", {{"self", g}}, size);
      const Handle factor = t.op("reciprocal", {{"self", norm}}, finite(1).range(1 / own.norm, 1 / own.norm));
      t.in_place("mul_", g, {{"other", factor}}, finite());
    }
    if (own.ranks > 0) {
      CollectiveRecord call;
      call.call = static_cast<std::uint64_t>(step);
      call.reduction = Reduction::kSum;
      for (std::uint32_t rank = 0; rank < own.ranks; ++rank) call.ranks.push_back(rank);
      t.collective(call);
      t.in("", Phase::kComm).in_place("c10d::allreduce_", g, {}, finite());
    }
    t.in("", Phase::kUnscale);
    if (own.divides) t.in_place("div_", g, {}, finite(), {{"other", scale * own.off}});
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    t.end_step();
  }
  return scale;
}

TEST(OwnScaler, that_finds_its_size_calibrates_and_is_no_fault) {
  for (const Own& own : {Own{}, Own{.as_tensor = true}, Own{.weighs = true}}) {
    TraceBuilder t;
    train(t, own, 65536, 10);
    const Analysis a = analysis_of(t);
    EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
    ASSERT_EQ(a.findings.size(), 1u);
    EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCalibration);
    ASSERT_TRUE(a.scaler.has_value());
    EXPECT_EQ(a.scaler->family, "the program's own");
    EXPECT_EQ(a.scaler->skipped, 4u);
    EXPECT_EQ(a.scaler->backoffs, 4u);
    EXPECT_EQ(a.scaler->final_scale, 4096);
    EXPECT_TRUE(a.scaler->dynamic);
  }
  TraceBuilder healthy;
  train(healthy, {}, 1024, 10);
  EXPECT_EQ(table(analysis_of(healthy)), "clean\n");
}

TEST(OwnScaler, is_not_seen_in_a_weight_of_the_loss_that_nothing_is_divided_by) {
  TraceBuilder t;
  train(t, {.divides = false}, 64, 4);
  EXPECT_FALSE(analysis_of(t).scaler.has_value());
  TraceBuilder other;
  train(other, {.off = 3}, 64, 4);
  EXPECT_FALSE(analysis_of(other).scaler.has_value());
  TraceBuilder same;
  train(same, {}, 64, 4);
  ASSERT_TRUE(analysis_of(same).scaler.has_value());
  EXPECT_FALSE(analysis_of(same).scaler->dynamic);
}

TEST(OwnScaler, is_not_seen_in_an_average_over_ranks) {
  TraceBuilder t;
  train(t, {.ranks = 64}, 64, 4);
  EXPECT_FALSE(analysis_of(t).scaler.has_value());
  TraceBuilder scaled;  // of gradients that are added up over 4 ranks
  train(scaled, {.ranks = 4}, 64, 4);
  EXPECT_TRUE(analysis_of(scaled).scaler.has_value());
}

TEST(OwnScaler, whose_scale_falls_without_end_is_hopeless) {
  TraceBuilder t;
  train(t, {.singular = true}, 16, 20);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(a.findings.at(0).place.op, "div_backward");
}

TEST(OwnScaler, that_only_ever_skips_at_one_scale_is_a_fault) {
  TraceBuilder t;
  train(t, {.stays = true}, 65536, 12);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kOverflow);
  TraceBuilder twin;
  train(twin, {.stays = true}, 2048, 12);
  EXPECT_EQ(table(analysis_of(twin)), "clean\n");
}

TEST(OwnScaler, whose_scaled_loss_overflows_where_it_is_stored_calibrates_too) {
  TraceBuilder t;
  train(t, {.in_fp16 = true}, 65536, 10);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].place.op, "mul");
  EXPECT_EQ(a.findings[0].place.phase, Phase::kScale);
  TraceBuilder fixed;  // a scale that never falls never fits
  train(fixed, {.stays = true, .in_fp16 = true}, 65536, 12);
  EXPECT_EQ(analysis_of(fixed).verdict.status, VerdictStatus::kFault);
}

TEST(OwnScaler, that_clips_by_a_norm_close_to_its_scale_is_misused_from_the_first_step_on) {
  TraceBuilder t;
  train(t, {.clips = true, .norm = 1024.8}, 1024, 4);
  const Analysis a = analysis_of(t);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kApiMisuse) << table(a);
  EXPECT_EQ(a.findings[0].first_step, 0u) << table(a);
}

TEST(OwnScaler, that_clips_before_it_unscales_is_misused) {
  TraceBuilder t;
  train(t, {.clips = true}, 1024, 4);
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kApiMisuse);
  EXPECT_EQ(a.findings[0].severity, Severity::kFault);
  EXPECT_EQ(a.findings[0].place.phase, Phase::kClip);
  TraceBuilder unscaled;  // clipping gradients that nothing scales
  train(unscaled, {.clips = true}, 1, 4);
  EXPECT_EQ(table(analysis_of(unscaled)), "clean\n");
}

TEST(OwnScaler, is_none_where_a_program_gives_up_steps_without_scaling) {
  TraceBuilder t;
  train(t, {.fits = 0.5, .stays = true}, 1, 1);
  train(t, {}, 1, 5);
  const Analysis a = analysis_of(t);
  EXPECT_FALSE(a.scaler.has_value());
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kWarning);  // it was got over
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
}

TEST(OwnScaler, a_step_that_it_skips_as_the_last_of_the_run_is_counted) {
  // given a loss that is NaN from step 2 on, which no optimizer and no further forward follows at the end
  TraceBuilder t;
  for (int step = 0; step < 6; ++step) {
    const bool bad = step >= 2;
    const double scale = bad ? 1024.0 / (1 << (step - 2)) : 1024.0;
    const Handle loss = t.in("<loss>", Phase::kLoss)
                            .called_from("train.py:9")
                            .op("log", {{"self", t.value(bad ? finite(1).range(-1, -1) : finite(1).range(2, 2))}},
                                bad ? finite(1).nan(1) : finite(1).range(0.5, 0.5));
    const Handle scaled = t.called_from("train.py:10").op("mul", {{"self", loss}}, bad ? finite(1).nan(1) : finite(1), {{"other", scale}});
    t.mark(TensorRole::kLoss, "loss", scaled);
    Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {{"grad_output", scaled}}, bad ? finite().nan(8) : finite());
    if (bad) {
      t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
      t.give_up(step == 5 ? StepEnding::kEnd : StepEnding::kNextForward, "", /*skipped=*/step != 5);
      continue;
    }
    t.in("", Phase::kUnscale).in_place("div_", g, {}, finite(), {{"other", scale}});
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    t.end_step(512);  // what backward began from
  }
  const Analysis a = analysis_of(t);
  ASSERT_TRUE(a.scaler);
  EXPECT_EQ(a.scaler->skipped, 4u);
  EXPECT_EQ(a.scaler->final_scale, 128);
  EXPECT_TRUE(a.scaler->points.back().skipped);
  EXPECT_TRUE(a.timeline.back().skipped);
  // and the loss is told without its scale
  EXPECT_DOUBLE_EQ(a.timeline.front().loss, 0.5);
}

}  // namespace
}  // namespace nanhunt
