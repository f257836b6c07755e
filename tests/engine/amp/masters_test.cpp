// SPDX-License-Identifier: Apache-2.0
// fp16 gradients, unscaled into fp32 masters: by every scaler.
#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/amp/scaler_fixture.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

std::unique_ptr<Optimizer> half_sgd(Tensor& weight, bool masters) {
  weight = Tensor::zeros({3}, DType::kF16).set_requires_grad(true);
  weight.set_grad(Tensor::from_values(std::vector<double>{1, -0.5, 0x1p-24}, {3}, DType::kF16));
  return make_optimizer({{"w", weight}}, {.algorithm = "sgd", .lr = 1, .fp32_masters = masters});
}

class EveryScaler : public ::testing::TestWithParam<std::size_t> {
 protected:
  const NamedScaler& named() const { return named_scalers()[GetParam()]; }
};
INSTANTIATE_TEST_SUITE_P(Scalers, EveryScaler, ::testing::Range(std::size_t{0}, named_scalers().size()),
                         [](const auto& given) {
                           std::string name(named_scalers()[given.param].name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(EveryScaler, unscales_fp16_gradients_into_the_masters_and_copies_the_weights_back) {
  // given
  Tensor weight;
  const auto optimizer = half_sgd(weight, /*masters=*/true);
  const auto scaler = named().choice.make();
  const double scale = scaler->get_scale();
  // when
  scaler->scale(Tensor::full({}, 1, DType::kF32));
  scaler->unscale_(*optimizer);
  // then the master's gradient is fp32 and far below what fp16 holds, and the parameter's is still scaled
  const Tensor master = optimizer->stepped()[0].tensor;
  ASSERT_TRUE(master.grad().defined());
  EXPECT_EQ(master.grad().dtype(), DType::kF32);
  EXPECT_EQ(master.grad().to_vector(), (std::vector<double>{1 / scale, -0.5 / scale, 0x1p-24 / scale}));
  EXPECT_EQ(weight.grad().at(0), 1);
  // when the step is taken
  EXPECT_TRUE(scaler->step(*optimizer));
  // then the master keeps what the rounded copy may lose
  EXPECT_EQ(master.at(2), -0x1p-24 / scale);
  EXPECT_EQ(weight.dtype(), DType::kF16);
  EXPECT_EQ(weight.at(0), round_to(DType::kF16, -1 / scale));
  // and zero_grad clears both
  optimizer->zero_grad();
  EXPECT_FALSE(master.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST_P(EveryScaler, trains_an_fp16_model_with_masters_as_far_as_fp32) {
  const auto final_loss = [&](bool half) {
    const DType dtype = half ? DType::kF16 : DType::kF32;
    auto model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 32, 10}, .dtype = dtype});
    auto parameters = model->named_parameters();
    TrainerOptions options{.clip_norm = 5};
    if (half) options.scaler = named().choice;
    Trainer trainer(
        std::move(model),
        make_optimizer(std::move(parameters), {.algorithm = "adam", .lr = 1e-2, .fp32_masters = half}),
        digits_train_batches(64, 3, dtype),
        [](const Tensor& output, const Batch& batch) { return cross_entropy(to(output, DType::kF32), batch.targets); },
        options);
    double loss = 0;
    std::uint32_t taken = 0;
    for (int i = 0; i < 140; ++i) {
      const StepResult result = trainer.step();
      taken += result.skipped ? 0 : 1;
      if (i >= 120) loss += result.loss / 20;
    }
    EXPECT_GE(taken, 120U);
    return loss;
  };
  EXPECT_NEAR(final_loss(true), final_loss(false), 0.03);
}

TEST_P(EveryScaler, changes_nothing_when_it_is_observed) {
  const auto train = [&](bool watched) {
    auto model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 16, 10}, .dtype = DType::kF16});
    auto parameters = model->named_parameters();
    Trainer trainer(
        std::move(model),
        make_optimizer(std::move(parameters), {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .fp32_masters = true}),
        digits_train_batches(32, 3, DType::kF16),
        [](const Tensor& output, const Batch& batch) { return cross_entropy(to(output, DType::kF32), batch.targets); },
        {.scaler = named().choice, .micro_batches = 2, .clip_norm = 1});
    EventLog log;
    HookHandle handle;
    if (watched) handle = add_observer(log);
    for (int i = 0; i < 40; ++i) trainer.step();
    std::vector<NamedTensor> all = trainer.model().named_parameters();
    for (const NamedTensor& state : trainer.optimizer().named_state()) all.push_back(state);
    return std::pair(bytes_of(all), trainer.scaler()->saved());
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Masters, torch_refuses_fp16_gradients_without_them_and_others_unscale_in_place) {
  Tensor weight;
  const auto optimizer = half_sgd(weight, /*masters=*/false);
  GradScaler torch;
  torch.scale(Tensor::full({}, 1, DType::kF32));
  EXPECT_THROW(torch.unscale_(*optimizer), std::invalid_argument);
  const auto apex = make_scaler(ApexScalerOptions{.loss_scale = 128});
  apex->scale(Tensor::full({}, 1, DType::kF32));
  apex->unscale_(*optimizer);
  EXPECT_EQ(weight.grad().at(0), 1.0 / 128);
  EXPECT_EQ(weight.grad().at(2), 0) << "2^-24 / 128 is nothing in fp16";
}

TEST(Masters, an_overflow_skips_the_step_and_leaves_masters_and_weights) {
  Tensor weight;
  const auto optimizer = half_sgd(weight, /*masters=*/true);
  weight.set_grad(Tensor::full({3}, HUGE_VAL, DType::kF16));
  const auto apex = make_scaler(ApexScalerOptions{});
  apex->scale(Tensor::full({}, 1, DType::kF32));
  EXPECT_FALSE(apex->step(*optimizer));
  EXPECT_EQ(weight.at(0), 0);
  EXPECT_EQ(optimizer->stepped()[0].tensor.at(0), 0);
}

TEST(Masters, are_clipped_and_marked_at_the_boundary_and_not_the_scaled_gradients) {
  // given
  auto model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 10}, .dtype = DType::kF16});
  auto parameters = model->named_parameters();
  Trainer trainer(
      std::move(model), make_optimizer(std::move(parameters), {.algorithm = "sgd", .lr = 0.1, .fp32_masters = true}),
      digits_train_batches(16, 3, DType::kF16),
      [](const Tensor& output, const Batch& batch) { return cross_entropy(to(output, DType::kF32), batch.targets); },
      {.scaler = ApexScalerOptions{.loss_scale = 1024}, .clip_norm = 0.25});
  double norm_sq = 0;
  trainer.set_boundary_callback([&](Trainer& at) {
    for (const auto& [path, tensor] : at.optimizer().with_gradients()) {
      EXPECT_EQ(tensor.grad().dtype(), DType::kF32) << path;
      for (double g : tensor.grad().to_vector()) norm_sq += g * g;
    }
  });
  // when
  trainer.step();
  // then
  EXPECT_NEAR(std::sqrt(norm_sq), 0.25, 1e-4);
}

}  // namespace
}  // namespace nanhunt::engine::testing
