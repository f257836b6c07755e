// SPDX-License-Identifier: Apache-2.0
// Apex's early interface: a handle's scale_loss, and wrapped optimizers.
#include "nanhunt/engine/apex_handle.h"

#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ThrowsMessage;

struct Trained {
  Tensor loss(double slope) const { return sum(mul(weight, slope)); }
  double gradient() const { return optimizer->gradient(0).at(0); }

  Tensor weight = Tensor::zeros({2}, DType::kF32).set_requires_grad(true);
  std::unique_ptr<Optimizer> optimizer = make_optimizer({{"w", weight}}, {.algorithm = "sgd", .lr = 1});
};

void backward(const Tensor& scaled) { scaled.backward(); }

TEST(ApexHandle, scales_a_loss_and_unscales_its_gradients) {
  ApexHandle handle;
  Trained run;
  double scaled = 0;
  handle.scale_loss(run.loss(3), *run.optimizer, [&](const Tensor& loss) {
    loss.backward();
    scaled = run.gradient();
  });
  EXPECT_EQ(scaled, 3 * 65536.0);
  EXPECT_EQ(run.gradient(), 3);
  EXPECT_TRUE(handle.step(*run.optimizer));
  EXPECT_EQ(run.weight.at(0), -3);
}

TEST(ApexHandle, skips_the_next_step_of_the_optimizer_that_overflowed_and_no_other) {
  ApexHandle handle;
  Trained bad, good;
  handle.scale_loss(bad.loss(HUGE_VAL), *bad.optimizer, backward);
  handle.scale_loss(good.loss(1), *good.optimizer, backward);
  EXPECT_TRUE(handle.step(*good.optimizer));
  EXPECT_EQ(handle.message(), "");
  EXPECT_FALSE(handle.step(*bad.optimizer));
  EXPECT_EQ(handle.message(), "Gradient overflow, skipping update");
  EXPECT_EQ(bad.weight.at(0), 0);
  EXPECT_EQ(handle.get_scale(), 32768) << "halved once: both have one default scaler";
  // and its next one runs
  bad.optimizer->zero_grad();
  handle.scale_loss(bad.loss(1), *bad.optimizer, backward);
  EXPECT_TRUE(handle.step(*bad.optimizer));
  EXPECT_EQ(bad.weight.at(0), -1);
}

// Why several losses need a wrapped optimizer.
TEST(ApexHandle, unscales_gradients_of_an_earlier_block_once_more) {
  ApexHandle handle;
  Trained run;
  handle.scale_loss(run.loss(1), *run.optimizer, backward);
  handle.scale_loss(run.loss(1), *run.optimizer, backward);
  EXPECT_EQ(run.gradient(), 1 + 1 / 65536.0);
  Trained wrapped;
  ApexWrappedOptimizer optimizer = handle.wrap_optimizer(*wrapped.optimizer, 2);
  optimizer.scale_loss(wrapped.loss(1), backward);
  optimizer.scale_loss(wrapped.loss(1), backward);
  EXPECT_EQ(wrapped.gradient(), 2);
}

TEST(ApexHandle, leaves_a_16_bit_loss_in_its_format_which_can_overflow) {
  ApexHandle handle;
  Trained run;
  const Tensor loss = to(run.loss(1), DType::kF16), one = add(loss, 1.0);
  handle.scale_loss(one, *run.optimizer, [](const Tensor& scaled) {
    EXPECT_EQ(scaled.dtype(), DType::kF16);
    EXPECT_TRUE(std::isinf(scaled.item()));
    scaled.backward();
  });
}

TEST(ApexHandle, casts_by_O1s_lists_and_keeps_casts_if_it_is_asked_to) {
  const Tensor x = Tensor::full({2, 2}, 1, DType::kF32);
  {
    const Autocast region(ApexHandle().casts());
    EXPECT_EQ(matmul(x, x).dtype(), DType::kF16);
    EXPECT_TRUE(autocast_cache_enabled());
  }
  const Autocast uncached(ApexHandle({.enable_caching = false}).casts());
  EXPECT_FALSE(autocast_cache_enabled());
}

TEST(ApexHandle, that_is_not_enabled_does_nothing) {
  ApexHandle handle({.enabled = false});
  Trained run;
  const Autocast region(handle.casts());
  EXPECT_FALSE(autocast_enabled());
  ApexWrappedOptimizer wrapped = handle.wrap_optimizer(*run.optimizer);
  handle.scale_loss(run.loss(3), *run.optimizer, backward);
  wrapped.scale_loss(run.loss(HUGE_VAL), backward);
  EXPECT_TRUE(std::isinf(run.gradient()));
  EXPECT_TRUE(wrapped.step()) << "nothing is checked";
  EXPECT_EQ(handle.get_scale(), 1);
}

TEST(ApexWrappedOptimizer, has_a_scale_for_each_loss_and_skips_where_any_overflowed) {
  ApexHandle handle;
  Trained run;
  ApexWrappedOptimizer optimizer = handle.wrap_optimizer(*run.optimizer, 2);
  optimizer.scale_loss(run.loss(1), backward);
  optimizer.scale_loss(run.loss(HUGE_VAL), backward);
  EXPECT_FALSE(optimizer.step());
  EXPECT_EQ(optimizer.message(), "Gradient overflow, skipping update");
  const LossScaler::Saved saved = optimizer.saved();
  EXPECT_EQ(saved[0], (std::pair<std::string, double>("loss_scaler0.loss_scale", 65536)));
  EXPECT_EQ(saved[2], (std::pair<std::string, double>("loss_scaler1.loss_scale", 32768)));
  run.optimizer->zero_grad();
  optimizer.scale_loss(run.loss(1), backward);
  optimizer.scale_loss(run.loss(2), backward);
  EXPECT_TRUE(optimizer.step());
  EXPECT_EQ(run.weight.at(0), -3);
}

TEST(ApexWrappedOptimizer, misuse_is_refused) {
  ApexHandle handle;
  Trained run;
  ApexWrappedOptimizer optimizer = handle.wrap_optimizer(*run.optimizer);
  EXPECT_THAT([&] { handle.scale_loss(run.loss(1), *run.optimizer, backward); },
              ThrowsMessage<std::invalid_argument>(
                  "After calling `handle.wrap_optimizer()`, you must explicitly use `optimizer.scale_loss(loss)`."));
  optimizer.scale_loss(run.loss(1), backward);
  EXPECT_THROW(optimizer.scale_loss(run.loss(1), backward), std::invalid_argument);
  EXPECT_THROW(handle.wrap_optimizer(*run.optimizer, 0), std::invalid_argument);
}

TEST(ApexHandle, says_scale_check_update_and_step) {
  ApexHandle handle;
  Trained run;
  EventLog log;
  const HookHandle hooks = add_observer(log);
  handle.backward(run.loss(HUGE_VAL), *run.optimizer);
  handle.step(*run.optimizer);
  EXPECT_GE(log.starting_with("scaler").size(), 4U);
  EXPECT_EQ(handle.get_scale(), 32768);
}

}  // namespace
}  // namespace nanhunt::engine::testing
