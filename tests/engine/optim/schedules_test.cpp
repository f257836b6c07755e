// SPDX-License-Identifier: Apache-2.0
// Schedules against the numbers of PyTorch 2.13, and their place in the loop.
#include "nanhunt/engine/schedules.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <stdexcept>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

// torch computes the cosine schedule from its last value: errors add up to a few units in the last place.
void expect_near(const LrSchedule& schedule, std::span<const double> expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(schedule(static_cast<std::uint32_t>(i)), expected[i], 1e-16) << "step " << i;
  }
}

TEST(OneCycle, is_torch_OneCycleLR_with_cosine_in_two_phases) {
  // OneCycleLR(max_lr=0.1, total_steps=20, cycle_momentum=False)
  constexpr std::array<double, 20> kTorch = {
      0.0040000000000000036, 0.013167184270002533, 0.037167184270002526, 0.06683281572999747, 0.09083281572999748,
      0.1,                   0.09874640062350874,  0.09504846320134738,  0.089091617757105,   0.0811745653949763,
      0.07169430017913009,   0.06112620219362893,  0.0500002,            0.03887419780637107, 0.028306099820869922,
      0.0188258346050237,    0.010908782242895003, 0.004951936798652629, 0.0012539993764912555, 4e-07};
  const LrSchedule schedule = one_cycle({.max_lr = 0.1, .steps = 20});
  expect_near(schedule, kTorch);
  EXPECT_EQ(schedule(1000), 4e-07);
}

TEST(Cosine, is_torch_LinearLR_and_then_CosineAnnealingLR) {
  // SequentialLR([LinearLR(start_factor=1/5, total_iters=5), CosineAnnealingLR(T_max=15, eta_min=0.01)], [5]), lr 0.1
  constexpr std::array<double, 20> kTorch = {
      0.020000000000000004, 0.03600000000000001, 0.05200000000000002,  0.06800000000000002,  0.08400000000000003,
      0.1,                  0.09901664203302127, 0.09610954559391705,  0.09140576474687265,  0.08511087728614863,
      0.07750000000000001,  0.06890576474687266, 0.059703780847044426, 0.05029621915295562,  0.04109423525312738,
      0.032500000000000015, 0.024889122713851394, 0.018594235253127367, 0.013890454406082955, 0.010983357966978744};
  const LrSchedule schedule = cosine_with_warm_up({.lr = 0.1, .steps = 20, .warm_up_steps = 5, .min_lr = 0.01});
  expect_near(schedule, kTorch);
  EXPECT_EQ(schedule(20), 0.01);
  EXPECT_EQ(cosine_with_warm_up({.lr = 0.1, .steps = 20})(0), 0.1) << "without warm-up";
}

TEST(ExponentialRamp, multiplies_by_one_factor_a_step) {
  const LrSchedule ramp = exponential_ramp(1e-7, 10, 8);
  EXPECT_EQ(ramp(0), 1e-7);
  for (std::uint32_t step = 0; step < 8; ++step) EXPECT_NEAR(ramp(step + 1) / ramp(step), 10, 1e-13);
  EXPECT_EQ(ramp(8), 10);
  EXPECT_EQ(ramp(9), 10);
}

std::unique_ptr<Trainer> train_by(const LrSchedule& schedule, OptimizerOptions optimizer = {.algorithm = "sgd"}) {
  TrainingSetup setup;
  setup.model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 10}});
  setup.optimizer = optimizer;
  if (schedule) setup.options.callbacks = {schedule_lr(schedule)};
  return make_trainer(std::move(setup), digits_train_batches(16, 3, DType::kF32),
                      [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); });
}

TEST(Schedule, sets_the_rate_that_each_step_trains_with_and_tells) {
  const LrSchedule schedule = one_cycle({.max_lr = 0.5, .steps = 10});
  for (const char* algorithm : {"sgd", "adam", "adamw"}) {
    for (const OptimizerImpl impl : {OptimizerImpl::kForLoop, OptimizerImpl::kFused}) {
      const OptimizerOptions options{.algorithm = algorithm, .lr = 1, .impl = impl};
      const auto scheduled = train_by(schedule, options), by_hand = train_by({}, options);
      EventLog log;
      const HookHandle handle = add_observer(log);
      for (std::uint32_t step = 0; step < 6; ++step) {
        by_hand->optimizer().set_lr(schedule(step));
        by_hand->step();
        scheduled->step();
        EXPECT_EQ(log.last_lr, schedule(step));
      }
      EXPECT_EQ(bytes_of(*scheduled), bytes_of(*by_hand)) << algorithm;
    }
  }
}

TEST(Schedule, is_seen_again_by_a_restored_run) {
  const auto trainer = train_by(one_cycle({.max_lr = 0.5, .steps = 10}));
  trainer->step();
  const auto snapshot = trainer->snapshot();
  trainer->step();
  const auto bits = bytes_of(*trainer);
  trainer->restore(*snapshot);
  trainer->step();
  EXPECT_EQ(bytes_of(*trainer), bits);
}

TEST(Schedules, refuse_what_they_cannot_follow) {
  EXPECT_THROW(one_cycle({.max_lr = 0.1, .steps = 3}), std::invalid_argument);
  EXPECT_THROW(one_cycle({.max_lr = 0, .steps = 20}), std::invalid_argument);
  EXPECT_THROW(cosine_with_warm_up({.lr = 0.1, .steps = 5, .warm_up_steps = 5}), std::invalid_argument);
  EXPECT_THROW(cosine_with_warm_up({.lr = -1, .steps = 5}), std::invalid_argument);
  EXPECT_THROW(exponential_ramp(0, 1, 10), std::invalid_argument);
  EXPECT_THROW(exponential_ramp(1, 2, 0), std::invalid_argument);
  EXPECT_THROW(schedule_lr({}), std::invalid_argument);
  const auto trainer = train_by({});
  EXPECT_THROW(trainer->optimizer().set_lr(-1), std::invalid_argument);
  EXPECT_THROW(trainer->optimizer().set_lr(std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine::testing
