// SPDX-License-Identifier: Apache-2.0
// Steps as graphs where somebody changes between steps what a graph has not been captured under.
#include <gmock/gmock.h>

#include <map>
#include <stdexcept>
#include <utility>

#include "tests/engine/device/graph_support.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using Change = std::function<void(Trainer&, int)>;  // before that step

// Runs 8 steps op by op and as graphs. `replayed`: how many of these are; `why`: others are not.
void expect_followed(const Training& run, std::uint64_t replayed, const std::string& why, const Change& change) {
  ScopedEmulatedDevice emulated;
  std::vector<std::vector<double>> lines[2];
  GraphUse use;
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    const std::unique_ptr<Trainer> trainer = make(run, steps);
    Ledger ledger(*trainer);
    for (int i = 0; i < 8; ++i) {
      change(*trainer, i);
      ledger.step();
    }
    lines[steps == Steps::kGraphs] = ledger.lines();
    use = trainer->graph_use();
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(lines[1][i] == lines[0][i]) << "step " << i;
  EXPECT_EQ(use.steps, replayed);
  EXPECT_EQ(use.why_not, "");
  EXPECT_EQ(steps_op_by_op(use, ""), 8 - replayed);
  EXPECT_EQ(steps_op_by_op(use, "it is the first one"), 1U);
  EXPECT_GT(steps_op_by_op(use, why), 0U);
}

// A model whose lower part may be frozen.
class Halves : public Module {
 public:
  Halves()
      : lower(register_module("lower", std::make_unique<Cnn>(CnnOptions{.channels = 4}))),
        upper(register_module("upper", std::make_unique<Mlp>(MlpOptions{.sizes = {10, 10}}))) {}
  Cnn& lower;
  Mlp& upper;

 protected:
  Tensor forward(const Tensor& input) override { return upper(lower(input)); }
};

Training halves() {
  Training run = convolutions();
  run.model = [] { return std::make_unique<Halves>(); };
  return run;
}

TEST(StepGraph, of_another_mode_of_a_module_below_is_not_replayed) {
  expect_followed(halves(), 5, "a setting of a module (its mode, a mask) is another", [](Trainer& trainer, int step) {
    dynamic_cast<Halves&>(trainer.model()).lower.train(step != 4 && step != 5);
  });
}

TEST(StepGraph, is_not_replayed_while_a_parameter_is_frozen) {
  expect_followed(perceptron(), 5, "asks for another gradient than in the capture", [](Trainer& trainer, int step) {
    Tensor weight = trainer.model().named_parameters()[0].tensor;
    weight.set_requires_grad(step != 4 && step != 5);
  });
}

TEST(StepGraph, is_not_replayed_with_other_masks_than_it_was_captured_with) {
  expect_followed(transformer(), 3, "a setting of a module", [](Trainer& trainer, int step) {
    if (step < 4) return;
    std::vector<double> padding(45, 0);
    padding[static_cast<std::size_t>(step)] = 1;
    const Tensor mask = Tensor::from_values(padding, {3, 15}, DType::kBool).on(kEmulated);
    dynamic_cast<Gpt&>(trainer.model()).set_key_mask(mask);
  });
}

TEST(StepGraph, is_not_replayed_with_a_stream_of_another_seed) {
  expect_followed(transformer(), 3, "a random stream has another seed than", [](Trainer& trainer, int step) {
    if (step != 4) return;
    for (RandomStream* stream : trainer.model().random_streams()) *stream = RandomStream(99, stream->stream());
  });
}

TEST(StepGraph, is_not_replayed_with_another_scaler) {
  Training run = perceptron();
  run.options = mixed(0x1p10);
  expect_followed(run, 3, "the scaler is another than", [](Trainer& trainer, int step) {
    if (step == 4) *trainer.scaler() = GradScaler({.init_scale = 0x1p30, .growth_interval = 2});
  });
}

TEST(StepGraph, is_not_replayed_in_an_autocast_region_around_it) {
  ScopedEmulatedDevice emulated;
  std::vector<std::vector<double>> lines[2];
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    const std::unique_ptr<Trainer> trainer = make(perceptron(), steps);
    Ledger ledger(*trainer);
    ledger.steps(4);
    {
      const Autocast region(AutocastOptions{});
      ledger.steps(2);
    }
    ledger.steps(2);
    lines[steps == Steps::kGraphs] = ledger.lines();
    EXPECT_EQ(trainer->graph_use().steps, steps == Steps::kGraphs ? 5U : 0U);
  }
  EXPECT_TRUE(lines[0] == lines[1]);
}

TEST(StepGraph, counts_its_steps_and_those_op_by_op_by_their_reasons) {
  ScopedEmulatedDevice emulated;
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  for (int i = 0; i < 2; ++i) trainer->step();
  {
    const NoGradGuard off;
    EXPECT_ANY_THROW(trainer->step());
  }
  {
    const Autocast region(AutocastOptions{});
    trainer->step();
  }
  WantsOps observer;
  {
    const HookHandle handle = add_observer(observer);
    for (int i = 0; i < 2; ++i) trainer->step();
  }
  trainer->step();
  const GraphUse use = trainer->graph_use();
  EXPECT_EQ(use.steps, 2U);
  const std::map<std::string, std::uint64_t> expected = {
      {"it is the first one, so that a capture meets nothing new", 1},
      {"gradients are off around it", 1},
      {"an autocast region is around it", 1},
      {"an observer wants ops", 2}};
  EXPECT_EQ(use.op_by_op, expected);
}

// What was captured of a batch that was the only one of its shape is of no use to anyone.
TEST(StepGraph, that_sixteen_steps_in_a_row_are_not_like_is_captured_anew) {
  Training run = perceptron();
  run.batches = [inner = run.batches, small = digits_train_batches(5, 3, DType::kF32)](std::uint32_t step) {
    return step == 1 || step == 10 ? small(step) : inner(step);
  };
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(run, Steps::kPlain, 32);
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.steps(2);
  const std::uint64_t bytes = trainer->graph_use().bytes;
  ledger.steps(30);
  EXPECT_TRUE(ledger.lines() == expected);
  const GraphUse use = trainer->graph_use();
  EXPECT_EQ(use.steps, 2 + 5U);  // the small ones; of the others those after 11 to 26
  EXPECT_EQ(use.updates, use.steps);
  EXPECT_LT(use.bytes, 2 * bytes);  // it has one graph at a time
  EXPECT_EQ(emulated.device.captures, 4U);
}

// An observer that turns graphs off or on at a mark of one step.
class Turns : public Observer {
 public:
  Turns(Trainer& trainer, std::uint32_t at, bool on) : trainer_(trainer), at_(at), on_(on) {}
  bool wants_ops() const noexcept override { return false; }
  void on_mark(MarkKind kind, std::string_view, const Tensor&) noexcept override {
    if (trainer_.next_step() != at_ || kind != MarkKind::kLoss) return;
    trainer_.use_graphs(!on_);
    trainer_.use_graphs(on_);
    bytes = trainer_.graph_use().bytes;
  }
  std::uint64_t bytes = 0;

 private:
  Trainer& trainer_;
  std::uint32_t at_;
  bool on_;
};

TEST(StepGraph, that_is_turned_off_in_the_middle_of_a_step_ends_with_it) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(perceptron(), Steps::kPlain, 8);
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  Ledger ledger(*trainer);
  Turns off(*trainer, 3, false), on(*trainer, 5, true);
  const HookHandle first = add_observer(off), second = add_observer(on);
  ledger.steps(3);
  const std::uint64_t before = trainer->graph_use().bytes;
  ledger.step();
  EXPECT_EQ(off.bytes, before);  // of that step it is still there
  EXPECT_EQ(trainer->graph_use().bytes, 0U);
  EXPECT_EQ(trainer->graph_use().steps, 0U);
  ledger.steps(4);
  EXPECT_TRUE(ledger.lines() == expected);
  EXPECT_EQ(trainer->graph_use().steps, 1U);  // on from step 6 on, of which the first one is not
}

TEST(StepGraph, that_is_turned_off_in_a_step_that_throws_ends_before_the_next) {
  Training run = perceptron();
  run.batches = [inner = run.batches, bad = std::make_shared<int>(0)](std::uint32_t step) {
    if (step == 3 && ++*bad == 1) throw std::runtime_error("not yet");
    return inner(step);
  };
  ScopedEmulatedDevice emulated;
  std::unique_ptr<Trainer> trainer;
  run.batches = [inner = run.batches, &trainer](std::uint32_t step) {
    if (step == 3) trainer->use_graphs(false);
    return inner(step);
  };
  trainer = make(run, Steps::kGraphs);
  for (int i = 0; i < 3; ++i) trainer->step();
  EXPECT_THROW(trainer->step(), std::runtime_error);
  trainer->step();
  EXPECT_EQ(trainer->graph_use().steps, 0U);
  EXPECT_EQ(trainer->graph_use().bytes, 0U);
}

// The scale is made by the first loss: a step that ended before it must not make the scale a constant of the graph.
TEST(StepGraph, follows_the_loss_scale_after_a_first_step_that_threw) {
  Training run = perceptron();
  run.options = mixed(0x1p30);
  ScopedEmulatedDevice emulated;
  std::vector<std::vector<double>> lines[2];
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    Training once = run;
    once.batches = [inner = run.batches, bad = std::make_shared<bool>(true)](std::uint32_t step) {
      if (std::exchange(*bad, false)) throw std::runtime_error("not yet");
      return inner(step);
    };
    const std::unique_ptr<Trainer> trainer = make(once, steps);
    EXPECT_THROW(trainer->step(), std::runtime_error);
    Ledger ledger(*trainer);
    ledger.steps(24);
    lines[steps == Steps::kGraphs] = ledger.lines();
    EXPECT_EQ(trainer->graph_use().steps, steps == Steps::kGraphs ? 23U : 0U);
  }
  EXPECT_TRUE(lines[0] == lines[1]);
}

TEST(StepGraph, takes_batches_of_a_source_that_fills_the_same_memory) {
  Training run = perceptron();
  run.options.micro_batches = 3;
  ScopedEmulatedDevice emulated;
  std::vector<std::vector<double>> lines[2];
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    Training reused = run;
    reused.batches = [inner = moved(run.batches, kEmulated), held = std::make_shared<Batch>()](std::uint32_t step) {
      Batch batch = inner(step);
      if (!held->inputs.defined()) *held = batch;
      held->inputs.copy_from(batch.inputs);
      held->targets.copy_from(batch.targets);
      return *held;
    };
    lines[steps == Steps::kGraphs] = lines_of(reused, steps, 6);
  }
  EXPECT_TRUE(lines[0] == lines[1]);
}

TEST(StepGraph, is_not_replayed_for_batches_that_a_gradient_is_asked_of) {
  Training run = perceptron();
  run.batches = [inner = run.batches](std::uint32_t step) {
    Batch batch = inner(step);
    batch.inputs = batch.inputs.on(kEmulated);
    batch.inputs.set_requires_grad(step >= 4);
    return batch;
  };
  expect_followed(run, 3, "a gradient is asked of it", [](Trainer&, int) {});
}

void expect_refused(const std::function<Training()>& with, const std::string& why) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(with(), Steps::kPlain, 5);
  GraphUse use;
  EXPECT_TRUE(lines_of(with(), Steps::kGraphs, 5, &use) == expected);
  EXPECT_THAT(use.why_not, HasSubstr(why));
  EXPECT_EQ(use.steps, 0U);
}

// Indices that came from the CPU are known to the host, so nothing would be read of the device.
TEST(StepGraph, is_refused_where_the_loss_reads_indices) {
  const auto with = [] {
    Training run = perceptron();
    run.loss = [](const Tensor& output, const Batch& batch) {
      return mul(of_classes(output, batch), static_cast<double>(batch.targets.to_indices()[0]));
    };
    return run;
  };
  expect_refused(with, "reading indices on the host cannot be part of a graph");
}

TEST(StepGraph, is_refused_where_the_gradient_of_a_tensor_that_nobody_lists_adds_up) {
  const auto with = [] {
    Training run = perceptron();
    auto factor = std::make_shared<Tensor>();
    run.loss = [factor](const Tensor& output, const Batch& batch) {
      if (!factor->defined()) {
        *factor = Tensor::full({}, 1, DType::kF32, kEmulated);
        factor->set_requires_grad(true);
      }
      return mul(of_classes(output, batch), *factor);
    };
    return run;
  };
  expect_refused(with, "adds up from step to step");
}

// A tensor that the loss held in the capture and then let go is neither freed nor handed out again.
TEST(StepGraph, keeps_what_it_reads) {
  ScopedEmulatedDevice emulated;
  Training run = perceptron();
  auto factor = std::make_shared<Tensor>(Tensor::full({}, 1, DType::kF32, kEmulated));
  run.loss = [factor](const Tensor& output, const Batch& batch) { return mul(of_classes(output, batch), *factor); };
  const auto expected = lines_of(run, Steps::kPlain, 6);
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.steps(3);
  const std::weak_ptr<Storage> held = factor->storage();
  *factor = Tensor::full({}, 1, DType::kF32, kEmulated);
  EXPECT_FALSE(held.expired());
  ledger.steps(3);
  EXPECT_TRUE(ledger.lines() == expected);
}

}  // namespace
}  // namespace nanhunt::engine::testing
