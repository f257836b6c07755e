// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "tests/engine/amp/scaler_fixture.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<float> clipped(const std::vector<double>& gradients, double max_norm) {
  CountingOptimizer optimizer("p", gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) optimizer.set_gradient(i, gradients[i]);
  clip_grad_norm_(optimizer.parameters(), max_norm);
  std::vector<float> out;
  for (std::size_t i = 0; i < gradients.size(); ++i) out.push_back(optimizer.gradient(i));
  return out;
}

TEST(ClipGradNorm, scales_all_gradients_by_one_coefficient_of_their_total_norm) {
  // Bits of eager: 5 + 1e-6 in fp32, its reciprocal times the bound.
  const float coefficient = 1 / (5.0F + 1e-6F) * 2.5F;
  EXPECT_THAT(clipped({3, -4}, 2.5), ElementsAre(3 * coefficient, -4 * coefficient));
}

TEST(ClipGradNorm, leaves_gradients_below_the_bound_alone) {
  EXPECT_THAT(clipped({3, -4}, 100), ElementsAre(3.0F, -4.0F));
}

TEST(ClipGradNorm, an_infinite_total_zeroes_what_was_finite_and_makes_nan_of_the_rest) {
  const std::vector<float> out = clipped({3, kInf}, 1);
  EXPECT_EQ(out[0], 0);
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST(ClipGradNorm, a_nan_total_makes_every_gradient_nan) {
  for (float gradient : clipped({3, kNan}, 1)) EXPECT_TRUE(std::isnan(gradient));
}

TEST(ClipGradNorm, refuses_a_total_that_is_not_finite_if_asked_to_and_then_changes_nothing) {
  CountingOptimizer optimizer("p", 2);
  optimizer.set_gradient(0, 3);
  optimizer.set_gradient(1, kInf);
  EXPECT_THROW(clip_grad_norm_(optimizer.parameters(), 1, /*error_if_nonfinite=*/true), std::invalid_argument);
  EXPECT_EQ(optimizer.gradient(0), 3);
}

TEST(ClipGradNorm, without_gradients_is_0) {
  CountingOptimizer optimizer("p");
  EXPECT_EQ(clip_grad_norm_(optimizer.parameters(), 1), 0);
}

TEST(ClipGradNorm, takes_norms_in_the_formats_of_the_gradients) {
  // given: 300 * 300 is more than fp16 holds, but the norm is not
  CountingOptimizer optimizer("p", 2);
  optimizer.set_gradient(0, 300, DType::kF16);
  optimizer.set_gradient(1, 400);
  EXPECT_EQ(clip_grad_norm_(optimizer.parameters(), 1e6), 500);
}

TEST(ClipGradNorm, is_observed_from_norms_to_gradients_and_told_as_an_event) {
  // given
  struct Clips : Observer {
    std::vector<ScalerEvent> events;
    void on_scaler(const ScalerEvent& event) noexcept override { events.push_back(event); }
  } clips;
  CountingOptimizer optimizer("w", 2);
  optimizer.set_gradient(0, 3);
  optimizer.set_gradient(1, 4);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder), other = add_observer(clips);
  // when
  const double total = clip_grad_norm_(optimizer.parameters(), 2.5);
  // then
  EXPECT_EQ(total, 5);
  EXPECT_THAT(recorder.lines,
              ElementsAre("clip w0 norm/fp32 self:0 -> out:0", "clip w1 norm/fp32 self:0 -> out:0",
                          "clip stack/fp32 tensors:0 tensors:0 -> out:0", "clip norm/fp32 self:0 -> out:0",
                          "clip add/fp32 self:0 -> out:0 {other=1e-06}", "clip reciprocal/fp32 self:0 -> out:0",
                          "clip mul/fp32 self:0 -> out:0 {other=2.5}",
                          "clip clamp/fp32 self:0 -> out:0 {min=-inf max=1}",
                          "clip w0 mul_/fp32 self:0(overwritten) other:0 -> out:1",
                          "clip w1 mul_/fp32 self:0(overwritten) other:0 -> out:1"));
  ASSERT_EQ(clips.events.size(), 1U);
  EXPECT_EQ(clips.events[0].action, ScalerAction::kClip);
  EXPECT_EQ(clips.events[0].total_norm, 5);
  EXPECT_EQ(clips.events[0].max_norm, 2.5);
}

}  // namespace
}  // namespace nanhunt::engine::testing
