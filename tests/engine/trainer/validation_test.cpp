// SPDX-License-Identifier: Apache-2.0
// A validation learns nothing, changes nothing, and is told as what it is.
#include <gtest/gtest.h>

#include <cmath>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

Tensor digits_loss(const Tensor& logits, const Batch& batch) {
  return cross_entropy(to(logits, DType::kF32), batch.targets);
}

ValidationOptions every_second(std::optional<AutocastOptions> autocast = {}) {
  return {.batches =
              [](std::uint32_t b) { return make_digits_batch(digits_test_ids().subspan(b * 40, 40), DType::kF32); },
          .count = 2,
          .every = 2,
          .autocast = autocast};
}

// Its batch norms have running statistics that a validation in training mode would change.
std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const OptimizerOptions& optimizer = {.algorithm = "sgd", .lr = 0.05}) {
  auto model = std::make_unique<Cnn>(CnnOptions{.channels = 4});
  auto parameters = model->named_parameters();
  return std::make_unique<Trainer>(std::move(model), make_optimizer(std::move(parameters), optimizer),
                                   digits_train_batches(32, 3, DType::kF32), digits_loss, options);
}

TEST(Validation, ends_every_so_many_steps_and_changes_no_bit_of_training) {
  const auto plain = make_trainer({}), validated = make_trainer({.validation = every_second()});
  for (std::uint32_t i = 0; i < 6; ++i) {
    const StepResult a = plain->step(), b = validated->step();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_FALSE(a.validation_loss);
    EXPECT_EQ(b.validation_loss.has_value(), i % 2 == 1) << i;
  }
  EXPECT_EQ(bytes_of(*plain), bytes_of(*validated));
  EXPECT_TRUE(validated->model().training());
}

TEST(Validation, meets_the_casts_of_a_recipe_as_training_does) {
  TrainingSetup setup;
  setup.model = std::make_unique<Cnn>(CnnOptions{.channels = 4});
  setup.optimizer = {.algorithm = "sgd", .lr = 0.05};
  setup.options.validation = every_second();
  const auto trainer = engine::make_trainer(fastai_to_fp16(std::move(setup)), digits_train_batches(32, 3, DType::kF32),
                                            [](const Tensor& logits, const Batch& batch) {
                                              EXPECT_EQ(batch.inputs.dtype(), DType::kF16);
                                              EXPECT_EQ(logits.dtype(), DType::kF32);
                                              return cross_entropy(logits, batch.targets);
                                            });
  trainer->step();
  EXPECT_TRUE(std::isfinite(trainer->step().validation_loss.value()));
}

TEST(Validation, gives_the_mean_loss_of_its_batches_by_the_running_statistics) {
  const auto trainer = make_trainer({.validation = every_second()});
  trainer->step();
  const double told = *trainer->step().validation_loss;
  const NoGradGuard no_grad;
  trainer->model().train(false);
  double sum = 0;
  for (std::uint32_t b = 0; b < 2; ++b) {
    const Batch batch = every_second().batches(b);
    sum += digits_loss(trainer->model()(batch.inputs), batch).item();
  }
  EXPECT_EQ(told, sum / 2);
}

TEST(Validation, is_told_after_the_update_in_a_phase_of_its_own) {
  const auto trainer = make_trainer({.validation = every_second()});
  trainer->step();
  EventLog log;
  const HookHandle handle = add_observer(log);
  trainer->step();
  const std::size_t began = log.index_of("batch 1 [" + [] {
    std::string ids;
    for (const std::int64_t id : digits_test_ids().first(40)) ids += (ids.empty() ? "" : " ") + std::to_string(id);
    return ids + "]";
  }());
  EXPECT_GT(began, log.index_of("stepped"));
  for (std::size_t i = 0; i < log.lines.size(); ++i) {
    const std::string& line = log.lines[i];
    if (line.starts_with("op ")) {
      EXPECT_EQ(line.starts_with("op validation"), i > began) << line;
    }
    if (line.starts_with("mark loss")) {
      EXPECT_LT(i, began);
    }
  }
  EXPECT_EQ(log.starting_with("mark output output").size(), 2U);
  EXPECT_EQ(log.starting_with("mark output loss").size(), 2U);
  EXPECT_TRUE(log.starting_with("op validation <loss>").size() > 0);
  EXPECT_EQ(log.lines.back(), "end 1");
}

TEST(Validation, runs_under_its_own_autocast_or_none) {
  for (const bool casts : {true, false}) {
    const auto trainer = make_trainer({.autocast = AutocastOptions{},
                                       .validation = every_second(casts ? std::optional(AutocastOptions{}) : std::nullopt)});
    trainer->step();
    EventLog log;
    const HookHandle handle = add_observer(log);
    trainer->step();
    EXPECT_EQ(log.starting_with("op validation conv1 _to_copy").empty(), !casts);
    EXPECT_FALSE(log.starting_with("op forward conv1 _to_copy").empty());
  }
}

TEST(Validation, of_nothing_is_refused) {
  for (ValidationOptions options : {ValidationOptions{}, ValidationOptions{.batches = every_second().batches, .count = 0},
                                    ValidationOptions{.batches = every_second().batches, .every = 0}}) {
    EXPECT_THROW(make_trainer({.validation = options}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
