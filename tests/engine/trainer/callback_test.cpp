// SPDX-License-Identifier: Apache-2.0
// What is plugged into the loop of a Trainer: when it is called, and what it can change.
#include "nanhunt/engine/callback.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

using Lines = std::vector<std::string>;

class Noting : public Callback {
 public:
  explicit Noting(Lines& lines) : lines_(lines) {}
  void on_batch_begin(Batch&) override { note("batch_begin"); }
  void on_loss_begin(Tensor&) override { note("loss_begin"); }
  bool on_backward_begin(Tensor& loss, const LossOfStep& which) override {
    note(which.last ? "backward_begin, last" : "backward_begin");
    EXPECT_FALSE(loss.sizes().size());
    return false;
  }
  void on_backward_end() override { note("backward_end"); }
  std::optional<bool> on_step() override {
    note("step");
    return std::nullopt;
  }
  void on_step_end() override { note("step_end"); }
  void on_batch_end(StepResult& result) override { note("batch_end " + std::to_string(result.step)); }

 private:
  void note(std::string line) {
    lines_.push_back(line + " in " + std::string(phase_name(current_phase())));
  }
  Lines& lines_;
};

std::unique_ptr<Trainer> train_with(std::vector<CallbackFactory> callbacks, TrainerOptions options = {}) {
  TrainingSetup setup;
  setup.model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 10}});
  setup.optimizer = {.algorithm = "sgd", .lr = 0.5};
  setup.options = options;
  setup.options.callbacks = std::move(callbacks);
  return make_trainer(std::move(setup), digits_train_batches(16, 3, DType::kF32),
                      [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); });
}

template <typename C, typename... Args>
CallbackFactory plug(Args&... args) {
  return [&args...](Trainer&) { return std::make_unique<C>(args...); };
}

TEST(Callback, is_called_at_each_point_in_order_with_a_scaler_and_without) {
  for (const bool scaled : {false, true}) {
    TrainerOptions options{.micro_batches = 2, .clip_norm = 1.0};
    if (scaled) options.scaler = GradScalerOptions{};
    Lines lines;
    const auto trainer = train_with({plug<Noting>(lines)}, options);
    trainer->step();
    EXPECT_EQ(lines, (Lines{"batch_begin in data", "loss_begin in loss", "backward_begin in forward",
                            "batch_begin in data", "loss_begin in loss", "backward_begin, last in forward",
                            "backward_end in forward", "step in forward", "step_end in forward",
                            "batch_end 0 in forward"}));
  }
}

class Doubling : public Callback {
  void on_batch_begin(Batch& batch) override { batch.inputs = mul(batch.inputs, 2); }
  void on_loss_begin(Tensor& output) override { output = mul(output, 2); }
  bool on_backward_begin(Tensor& loss, const LossOfStep&) override {
    loss = mul(loss, 2);
    return false;
  }
};

TEST(Callback, changes_what_model_loss_and_backward_get_and_not_the_data_or_the_loss_that_is_told) {
  // given logits W x: doubling x and the output multiplies logits by 4, and doubling the loss its gradients by 2
  const auto plain = train_with({}), doubled = train_with({plug<Doubling>()});
  double expected = 0, gradient = 0, other = 0;
  plain->set_boundary_callback([&](Trainer& at) {
    const Batch batch = digits_train_batches(16, 3, DType::kF32)(0);
    Tensor weight = at.model().named_parameters()[0].tensor.clone().set_requires_grad(true);
    const Tensor bias = at.model().named_parameters()[1].tensor;
    const Tensor logits = mul(linear(mul(batch.inputs, 2), weight, bias), 2);
    const Tensor loss = cross_entropy(logits, batch.targets);
    expected = loss.item();
    mul(loss, 2).backward();
    gradient = weight.grad().to_vector()[100];
  });
  doubled->set_boundary_callback(
      [&](Trainer& at) { other = at.optimizer().parameters()[0].tensor.grad().to_vector()[100]; });
  plain->step();
  EXPECT_EQ(doubled->step().loss, expected);
  EXPECT_NE(gradient, 0);
  EXPECT_EQ(other, gradient);
}

class OwnBackward : public Callback {
  bool on_backward_begin(Tensor& loss, const LossOfStep&) override {
    loss.backward();
    return true;
  }
};

TEST(Callback, may_run_backward_itself) {
  const auto plain = train_with({}), own = train_with({plug<OwnBackward>()});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(plain->step().loss, own->step().loss);
  EXPECT_EQ(bytes_of(*plain), bytes_of(*own));
}

class HoldsBack : public Callback {
  std::optional<bool> on_step() override { return false; }
};

TEST(Callback, may_hold_the_optimizer_back) {
  const auto trainer = train_with({plug<HoldsBack>()});
  const auto before = bytes_of(trainer->model().named_parameters());
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_TRUE(trainer->step().skipped);
  EXPECT_EQ(bytes_of(trainer->model().named_parameters()), before);
  log.index_of("skipped");
}

class Ends : public Callback {
  void on_batch_end(StepResult& result) override {
    if (result.step == 2) result.ended_by = "enough";
  }
};

TEST(Callback, may_end_training) {
  const auto trainer = train_with({plug<Ends>()});
  EXPECT_EQ(trainer->step().ended_by, "");
  EXPECT_EQ(trainer->step().ended_by, "");
  EXPECT_EQ(trainer->step().ended_by, "enough");
  EXPECT_THROW(trainer->step(), std::runtime_error);
}

TEST(Callback, may_be_added_later_but_must_be_one) {
  Lines lines;
  const auto trainer = train_with({});
  trainer->add_callback(std::make_unique<Noting>(lines));
  trainer->step();
  EXPECT_EQ(lines.size(), 7U);
  EXPECT_THROW(trainer->add_callback(nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine::testing
