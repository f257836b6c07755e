// SPDX-License-Identifier: Apache-2.0
// Image models learn: digits they have not seen, and images sharper than what they were given. Other seeds give 97.5 to
// 99.4 percent after the same five epochs in fp32, and 97.7 to 99.2 under autocast with 6 or 7 skipped steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {
namespace {

double test_accuracy(Module& model, DType dtype) {
  const NoGradGuard no_grad;
  model.train(false);
  const Batch batch = make_digits_batch(digits_test_ids(), dtype);
  const std::vector<double> logits = model(batch.inputs).to_vector();
  model.train();
  int right = 0;
  for (std::size_t row = 0; row < digits_test_ids().size(); ++row) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * kDigitsClasses);
    const auto best = std::max_element(first, first + kDigitsClasses) - first;
    right += best == static_cast<std::ptrdiff_t>(batch.targets.at(static_cast<std::int64_t>(row)));
  }
  return right / static_cast<double>(kDigitsTest);
}

Trainer cnn_trainer(DType dtype, bool fp32_masters = false, const TrainerOptions& options = {}) {
  auto model = std::make_unique<Cnn>(CnnOptions{.dtype = dtype});
  auto optimizer = make_optimizer(model->named_parameters(),
                                  {.algorithm = "adam", .lr = 3e-3, .fp32_masters = fp32_masters});
  return {std::move(model), std::move(optimizer), digits_train_batches(64, 1, dtype),
          [](const Tensor& output, const Batch& batch) {
            return cross_entropy(to(output, DType::kF32), batch.targets);
          },
          options};
}

TEST(CnnTraining, passes_96_percent_on_unseen_digits_within_five_epochs) {
  Trainer trainer = cnn_trainer(DType::kF32);
  for (int i = 0; i < 5 * 22; ++i) trainer.step();
  EXPECT_GE(test_accuracy(trainer.model(), DType::kF32), 0.96);
}

TEST(CnnTraining, under_autocast_with_a_loss_scaler_passes_96_percent_too_after_a_few_skipped_steps) {
  // given: a scale that the gradients do not fit at first
  Trainer trainer = cnn_trainer(DType::kF32, /*fp32_masters=*/false,
                                {.autocast = AutocastOptions{}, .scaler = GradScalerOptions{.init_scale = 0x1p24}});
  int skipped = 0;
  for (int i = 0; i < 5 * 22; ++i) skipped += trainer.step().skipped;
  EXPECT_GE(test_accuracy(trainer.model(), DType::kF32), 0.96);
  EXPECT_GE(skipped, 1);
  EXPECT_LE(skipped, 15);
  EXPECT_GT(trainer.scaler()->get_scale(), 1);
}

TEST(CnnTraining, in_16_bits_with_fp32_masters_learns_as_well) {
  Trainer trainer = cnn_trainer(DType::kBF16, /*fp32_masters=*/true);
  for (int i = 0; i < 4 * 22; ++i) trainer.step();
  EXPECT_GE(test_accuracy(trainer.model(), DType::kBF16), 0.95);
}

TEST(CnnTraining, repeats_a_step_bit_for_bit_running_statistics_included) {
  Trainer trainer = cnn_trainer(DType::kF32);
  trainer.step();
  const auto start = trainer.snapshot();
  const double loss = trainer.step().loss;
  std::vector<std::vector<double>> after;
  for (const auto& entry : trainer.model().named_buffers()) after.push_back(entry.tensor.to_vector());
  trainer.restore(*start);
  EXPECT_EQ(trainer.step().loss, loss);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(trainer.model().named_buffers()[i].tensor.to_vector(), after[i]);
  }
}

TEST(UNetTraining, sharpens_images_better_each_time_it_has_seen_them) {
  auto model = std::make_unique<UNet>(UNetOptions{});
  auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "adam", .lr = 5e-3});
  Trainer trainer(std::move(model), std::move(optimizer), upscaling_train_batches(64, 1, DType::kF32),
                  [](const Tensor& output, const Batch& batch) { return l1_loss(output, batch.targets); });
  const auto mean_loss = [&](int steps) {
    double sum = 0;
    for (int i = 0; i < steps; ++i) sum += trainer.step().loss;
    return sum / steps;
  };
  const double first = mean_loss(11);
  for (int i = 0; i < 44; ++i) trainer.step();
  const double last = mean_loss(11);
  // Handing the input on unchanged is this far off; the model must do better than that.
  const Batch batch = make_upscaling_batch(digits_train_ids(), DType::kF32);
  const double unchanged = l1_loss(batch.inputs, batch.targets).item();
  EXPECT_LT(last, 0.7 * first);
  EXPECT_LT(last, 0.85 * unchanged);
}

TEST(Upscaling, batches_hold_the_digits_and_their_block_means) {
  const Batch batch = make_upscaling_batch(digits_train_ids().first(2), DType::kF32);
  ASSERT_EQ(batch.inputs.sizes(), (Shape{2, 64}));
  EXPECT_EQ(batch.targets.to_vector(), make_digits_batch(digits_train_ids().first(2), DType::kF32).inputs.to_vector());
  for (std::int64_t corner : {0, 2, 52, 64 + 18}) {
    const std::int64_t block[] = {corner, corner + 1, corner + 8, corner + 9};
    double mean = 0;
    for (std::int64_t pixel : block) mean += batch.targets.at(pixel) / 4;
    for (std::int64_t pixel : block) EXPECT_EQ(batch.inputs.at(pixel), mean);
  }
}

}  // namespace
}  // namespace nanhunt::engine
