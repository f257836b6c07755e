// SPDX-License-Identifier: Apache-2.0
// Steps as graphs where somebody changes between steps what a graph has not been captured under.
#include <gmock/gmock.h>

#include <stdexcept>
#include <utility>

#include "tests/engine/device/graph_support.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using Change = std::function<void(Trainer&, int)>;  // before that step

// Runs 8 steps op by op and as graphs. `replayed`: how many of these are.
void expect_followed(const Training& run, std::uint64_t replayed, const Change& change) {
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
  expect_followed(halves(), 5, [](Trainer& trainer, int step) {
    dynamic_cast<Halves&>(trainer.model()).lower.train(step != 4 && step != 5);
  });
}

TEST(StepGraph, is_not_replayed_while_a_parameter_is_frozen) {
  expect_followed(perceptron(), 5, [](Trainer& trainer, int step) {
    Tensor weight = trainer.model().named_parameters()[0].tensor;
    weight.set_requires_grad(step != 4 && step != 5);
  });
}

TEST(StepGraph, is_not_replayed_with_other_masks_than_it_was_captured_with) {
  expect_followed(transformer(), 3, [](Trainer& trainer, int step) {
    if (step < 4) return;
    std::vector<double> padding(45, 0);
    padding[static_cast<std::size_t>(step)] = 1;
    const Tensor mask = Tensor::from_values(padding, {3, 15}, DType::kBool).on(kEmulated);
    dynamic_cast<Gpt&>(trainer.model()).set_key_mask(mask);
  });
}

TEST(StepGraph, is_not_replayed_with_a_stream_of_another_seed) {
  expect_followed(transformer(), 3, [](Trainer& trainer, int step) {
    if (step != 4) return;
    for (RandomStream* stream : trainer.model().random_streams()) *stream = RandomStream(99, stream->stream());
  });
}

TEST(StepGraph, is_not_replayed_with_another_scaler) {
  Training run = perceptron();
  run.options = mixed(0x1p10);
  expect_followed(run, 3, [](Trainer& trainer, int step) {
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
  expect_followed(run, 3, [](Trainer&, int) {});
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
