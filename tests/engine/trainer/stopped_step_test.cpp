// SPDX-License-Identifier: Apache-2.0
// A step that throws is told as given up, and training goes on with the next one.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

const std::string kWords = "Function 'SqrtBackward0' returned nan values in its 0th output.";

// In the first step the loss adds a root of zeros times 0: its value is sound, its slope is not.
LossFunction loss_with_root() {
  return [ids = digits_train_batches(32, 3, DType::kF32)(0).sample_ids](const Tensor& logits, const Batch& batch) {
    const Tensor loss = cross_entropy(logits, batch.targets);
    return batch.sample_ids == ids ? add(loss, mul(sqrt(mul(loss, 0)), 0)) : loss;
  };
}

std::unique_ptr<Trainer> make_trainer(bool anomaly, LossFunction loss = loss_with_root()) {
  auto model = std::make_unique<Mlp>(MlpOptions{});
  auto parameters = model->named_parameters();
  return std::make_unique<Trainer>(std::move(model), make_optimizer(std::move(parameters), {.algorithm = "sgd", .lr = 0.1}),
                                   digits_train_batches(32, 3, DType::kF32), std::move(loss),
                                   TrainerOptions{.detect_anomaly = anomaly});
}

std::string words_of_step(Trainer& trainer) {
  try {
    trainer.step();
  } catch (const std::runtime_error& stopped) {
    return stopped.what();
  }
  return "";
}

TEST(StoppedStep, by_anomaly_mode_changes_nothing_is_told_and_the_next_one_trains) {
  const auto trainer = make_trainer(true);
  const auto bits = bytes_of(*trainer);
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_EQ(words_of_step(*trainer), kWords);
  EXPECT_EQ(log.lines.back(), "gave up 0 exception " + kWords);
  EXPECT_EQ(bytes_of(*trainer), bits);
  EXPECT_EQ(trainer->next_step(), 1U);
  EXPECT_EQ(words_of_step(*trainer), "");
  EXPECT_EQ(log.lines.back(), "end 1");
}

TEST(StoppedStep, without_anomaly_mode_nan_reaches_the_weights) {
  const auto trainer = make_trainer(false);
  EXPECT_EQ(words_of_step(*trainer), "");
  EXPECT_TRUE(std::isnan(trainer->optimizer().parameters()[0].tensor.at(0)));
}

TEST(StoppedStep, by_anything_else_is_told_with_its_words) {
  const auto trainer = make_trainer(false, [](const Tensor&, const Batch&) -> Tensor { throw std::runtime_error("no label"); });
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_EQ(words_of_step(*trainer), "no label");
  EXPECT_EQ(log.lines.back(), "gave up 0 exception no label");
}

}  // namespace
}  // namespace nanhunt::engine::testing
