// SPDX-License-Identifier: Apache-2.0
// What the known answers do not say: formats of the scaled loss, observed ops and events, the static scale.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/amp/scaler_fixture.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const double kInf = std::numeric_limits<double>::infinity();

// Scaler events as "unscale 1 found" and so on, in order.
class Events : public Observer {
 public:
  std::vector<std::string> lines;
  std::vector<ScalerEvent> events;
  void on_scaler(const ScalerEvent& event) noexcept override {
    lines.push_back(fmt::format("{} {}{}{}{}", scaler_action_name(event.action), event.optimizer,
                                event.found_inf ? " found" : "", event.text.empty() ? "" : " ", event.text));
    events.push_back(event);
  }
};

Tensor loss_of(double value, DType dtype = DType::kF32) { return Tensor::full({}, value, dtype); }

TEST(GradScaler, scales_a_0_dim_fp16_loss_in_fp32_and_one_with_dimensions_in_fp16) {
  GradScaler scaler;
  const Tensor scalar = scaler.scale(loss_of(2, DType::kF16));
  EXPECT_EQ(scalar.dtype(), DType::kF32);
  EXPECT_EQ(scalar.item(), 131072);
  const Tensor vector = scaler.scale(Tensor::full({1}, 2, DType::kF16));
  EXPECT_EQ(vector.dtype(), DType::kF16);
  EXPECT_TRUE(std::isinf(vector.item()));
}

TEST(GradScaler, scales_several_outputs_by_one_scale) {
  GradScaler scaler({.init_scale = 8});
  const std::vector<Tensor> scaled = scaler.scale({loss_of(1), loss_of(2)});
  EXPECT_EQ(scaled[0].item(), 8);
  EXPECT_EQ(scaled[1].item(), 16);
}

TEST(GradScaler, the_gradient_of_the_scaled_loss_carries_the_scale) {
  GradScaler scaler({.init_scale = 1024});
  Tensor x = Tensor::full({}, 3, DType::kF32).set_requires_grad(true);
  scaler.scale(mul(x, 2.0)).backward();
  EXPECT_EQ(x.grad().item(), 2048);
}

TEST(GradScaler, is_observed_as_the_ops_of_torch_in_their_phases) {
  // given
  CountingOptimizer optimizer("fc.weight", 2);
  optimizer.set_gradient(0, 8);
  optimizer.set_gradient(1, 4);
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  // when
  const Tensor scaled = scaler.scale(loss_of(1));
  scaler.step(optimizer);
  scaler.update();
  scaler.scale(loss_of(1));
  // then: each gradient under its parameter's path, and the scale is one value with versions
  EXPECT_THAT(
      recorder.lines,
      ElementsAre("scale mul/fp32 self:0 other:0 -> out:0",
                  "unscale fc.weight0 _amp_foreach_non_finite_check_and_unscale_/fp32 self:0(overwritten) -> out:1 "
                  "{inv_scale=0.25}",
                  "unscale fc.weight1 _amp_foreach_non_finite_check_and_unscale_/fp32 self:0(overwritten) -> out:1 "
                  "{inv_scale=0.25}",
                  "update _amp_update_scale_/fp64 self:0(overwritten) -> out:1 {found_inf=0 scale_growth_factor=2 "
                  "scale_backoff_factor=0.5 growth_interval=1}",
                  "scale mul/fp32 self:0 other:1 -> out:0"));
  EXPECT_EQ(optimizer.gradient(0), 2);
  EXPECT_EQ(optimizer.gradient(1), 1);
}

TEST(GradScaler, tells_what_it_does_and_its_configuration_once) {
  Events events;
  const HookHandle handle = add_observer(events);
  CountingOptimizer first("a"), second("b");
  first.set_gradient(0, 1);
  second.set_gradient(0, kInf);
  GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
  scaler.scale(loss_of(1));
  scaler.unscale_(second);
  scaler.step(first);
  scaler.step(second);
  scaler.update();
  scaler.update(16);
  EXPECT_THROW(scaler.update(), std::invalid_argument);
  EXPECT_THAT(events.lines, ElementsAre("create 0 torch.amp", "scale 0", "unscale 0 found", "unscale 1", "step 1",
                                        "skip 0 found", "update 0 found", "set 0",
                                        "refused 0 No inf checks were recorded prior to update."));
  const ScalerEvent& created = events.events[0];
  EXPECT_TRUE(created.dynamic);
  EXPECT_EQ(created.scale, 1024);
  EXPECT_EQ(created.growth_factor, 2);
  EXPECT_EQ(created.backoff_factor, 0.5);
  EXPECT_EQ(created.growth_interval, 3);
  EXPECT_EQ(events.events[6].scale, 512);
  EXPECT_EQ(events.events[7].scale, 16);
}

TEST(GradScaler, tells_its_configuration_to_the_first_who_listens) {
  GradScaler scaler;
  scaler.scale(loss_of(1));
  Events events;
  const HookHandle handle = add_observer(events);
  scaler.scale(loss_of(1));
  EXPECT_THAT(events.lines, ElementsAre("create 0 torch.amp", "scale 0"));
}

TEST(GradScaler, events_carry_an_interval_that_was_changed_and_the_tracker) {
  Events events;
  const HookHandle handle = add_observer(events);
  CountingOptimizer optimizer("a");
  GradScaler scaler;
  scaler.scale(loss_of(1));
  optimizer.set_gradient(0, 1);
  scaler.step(optimizer);
  scaler.set_growth_interval(1);
  scaler.update();
  EXPECT_EQ(events.events.back().growth_interval, 1);
  EXPECT_EQ(events.events.back().growth_tracker, 0);
  EXPECT_EQ(events.events.back().scale, 131072);
}

TEST(GradScaler, a_static_scale_never_moves_and_never_holds_a_step_back) {
  Events events;
  const HookHandle handle = add_observer(events);
  CountingOptimizer optimizer("a");
  GradScaler scaler({.init_scale = 128, .growth_interval = 1, .dynamic = false});
  for (double gradient : {256.0, kInf}) {
    scaler.scale(loss_of(1));
    optimizer.set_gradient(0, gradient);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 128);
    EXPECT_EQ(scaler.growth_tracker(), 0);
  }
  EXPECT_EQ(optimizer.steps, 2);
  EXPECT_THAT(events.lines,
              ElementsAre("create 0 static", "scale 0", "unscale 0", "step 0", "update 0", "scale 0", "unscale 0",
                          "step 0", "update 0"));
  EXPECT_FALSE(events.events[0].dynamic);
}

TEST(GradScaler, disabled_does_nothing_and_says_nothing) {
  Events events;
  OpRecorder recorder;
  const HookHandle handle = add_observer(events), other = add_observer(recorder);
  CountingOptimizer optimizer("a");
  optimizer.set_gradient(0, kInf);
  GradScaler scaler({.enabled = false});
  const Tensor loss = loss_of(1);
  EXPECT_EQ(scaler.scale(loss).impl(), loss.impl());
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  scaler.update(4);
  EXPECT_FALSE(scaler.state());
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(optimizer.steps, 1);
  EXPECT_THAT(events.lines, IsEmpty());
  EXPECT_THAT(recorder.lines, IsEmpty());
}

TEST(GradScaler, keeps_the_gradients_of_a_skipped_step_unscaled_and_not_finite) {
  CountingOptimizer optimizer("a", 2);
  optimizer.set_gradient(0, 8);
  optimizer.set_gradient(1, kInf);
  GradScaler scaler({.init_scale = 4});
  scaler.scale(loss_of(1));
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_EQ(optimizer.steps, 0);
  EXPECT_EQ(optimizer.gradient(0), 2);
  EXPECT_EQ(optimizer.gradient(1), kInf);
}

TEST(GradScaler, refuses_fp16_gradients_before_it_touched_one) {
  CountingOptimizer optimizer("a", 2);
  optimizer.set_gradient(0, 8);
  optimizer.set_gradient(1, 8, DType::kF16);
  GradScaler scaler({.init_scale = 4});
  scaler.scale(loss_of(1));
  EXPECT_THROW(scaler.step(optimizer), std::invalid_argument);
  EXPECT_EQ(optimizer.gradient(0), 8);
}

TEST(GradScaler, tests_fp64_gradients_in_fp32_as_cuda_does) {
  CountingOptimizer optimizer("a");
  optimizer.set_gradient(0, 1e300, DType::kF64);
  GradScaler scaler;
  scaler.scale(loss_of(1));
  EXPECT_FALSE(scaler.step(optimizer));
}

TEST(GradScaler, state_that_was_saved_goes_on_in_another_scaler) {
  CountingOptimizer optimizer("a");
  GradScaler first({.init_scale = 256, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  const auto update = [&](GradScaler& scaler) {
    scaler.scale(loss_of(1));
    optimizer.set_gradient(0, 1);
    scaler.step(optimizer);
    scaler.update();
  };
  update(first);
  GradScaler second;
  second.load_state(first.state());
  EXPECT_EQ(second.state(), first.state());
  update(second);
  EXPECT_EQ(second.get_scale(), 1024);
  GradScaler none({.enabled = false});
  none.load_state(first.state());
  EXPECT_FALSE(none.state());
}

}  // namespace
}  // namespace nanhunt::engine::testing
