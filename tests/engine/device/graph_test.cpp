// SPDX-License-Identifier: Apache-2.0
// Steps as graphs on the emulated device, which notes calls and replays them: the bits of steps that run op by op,
// whatever changes from one to the next.
#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "tests/engine/device/graph_support.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::Order;

void expect_the_same(const Training& run, int steps, bool updates = true) {
  ScopedEmulatedDevice emulated;
  emulated.device.order = Order::kShuffled;
  const auto expected = lines_of(run, Steps::kPlain, steps);
  EXPECT_EQ(emulated.device.captures, 0U);
  GraphUse use;
  const auto actual = lines_of(run, Steps::kGraphs, steps, &use);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i] == expected[i]) << "step " << i;
  EXPECT_EQ(use.why_not, "");
  EXPECT_EQ(use.steps, static_cast<std::uint64_t>(steps) - 1);
  EXPECT_EQ(use.why_no_update == "", updates) << use.why_no_update;
  EXPECT_EQ(use.updates != 0, updates);
  EXPECT_EQ(emulated.device.captures, updates ? 2U : 1U);
  EXPECT_GT(use.bytes, 0U);
}

TEST(StepGraph, of_a_perceptron_gives_the_bits_of_steps_op_by_op) { expect_the_same(perceptron(), 8); }

TEST(StepGraph, follows_the_loss_scale_through_steps_that_are_skipped) {
  Training run = perceptron();
  run.options = mixed(0x1p30);
  expect_the_same(run, 24);
  // the scale fell and grew, and some steps were held back, or nothing was shown
  ScopedEmulatedDevice emulated;
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.steps(24);
  EXPECT_GT(ledger.skipped(), 2);
  EXPECT_LT(ledger.skipped(), 20);
}

TEST(StepGraph, accumulates_micro_batches_and_clips) {
  Training run = perceptron();
  run.options = mixed(0x1p16);
  run.options.micro_batches = 3;
  run.options.clip_norm = 0.05;
  expect_the_same(run, 6);
}

TEST(StepGraph, of_every_optimizer_gives_its_bits) {
  const std::map<std::string, std::pair<OptimizerOptions, bool>> ways = {
      {"fused_sgd", {{.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .impl = OptimizerImpl::kFused}, true}},
      {"fused_adamw", {{.algorithm = "adamw", .lr = 1e-2, .weight_decay = 0.1, .impl = OptimizerImpl::kFused}, true}},
      {"sgd", {{.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}, true}},
      {"adam", {{.algorithm = "adam", .lr = 1e-2}, false}},
  };
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    Training run = perceptron();
    run.optimizer = way.first;
    expect_the_same(run, 6, way.second);
  }
}

TEST(StepGraph, keeps_fp32_masters_of_16_bit_parameters) {
  Training run = perceptron(DType::kF16);
  run.optimizer.fp32_masters = true;
  expect_the_same(run, 6);
}

TEST(StepGraph, of_convolutions_keeps_running_statistics) {
  Training run = convolutions();
  run.options = mixed(0x1p20);
  expect_the_same(run, 6);
}

TEST(StepGraph, of_a_transformer_draws_new_masks_and_takes_new_tokens) {
  Training run = transformer();
  run.options = mixed(0x1p18);
  expect_the_same(run, 8);
  run.options.micro_batches = 2;
  expect_the_same(run, 4);
}

// Every label may be ignored: then the loss is 0/0.
TEST(StepGraph, takes_as_many_labels_as_a_step_has) {
  Training run = perceptron();
  run.batches = [inner = run.batches](std::uint32_t step) {
    Batch batch = inner(step);
    const std::int64_t ignored[] = {0, 3, 0, 7, 1, 8, 2};
    for (std::int64_t i = 0; i < ignored[step % 7]; ++i) batch.targets.data<std::int64_t>()[i] = -100;
    return batch;
  };
  run.options = mixed(0x1p10);  // which skips the step of NaN
  expect_the_same(run, 14);
}

TEST(StepGraph, takes_a_number_of_the_cpu_as_it_is_in_each_step) {
  Training run = perceptron();
  const Tensor factor = Tensor::full({}, 1, DType::kF32);
  run.loss = [factor](const Tensor& output, const Batch& batch) { return mul(of_classes(output, batch), factor); };
  run.batches = [inner = run.batches, factor = Tensor(factor)](std::uint32_t step) mutable {
    *factor.data<float>() = 1 + static_cast<float>(step % 4);
    return inner(step);
  };
  expect_the_same(run, 8);
}

// Temporaries of any size come and go before the loss is fed its labels.
TEST(StepGraph, feeds_memory_that_nothing_of_the_graph_writes) {
  Training run = perceptron();
  run.loss = [](const Tensor& output, const Batch& batch) {
    for (const std::int64_t bytes : {64, 512, 4096, 1 << 16, 1 << 20, (1 << 20) + 8 * 8 * 16}) {
      Tensor passing = Tensor::zeros({bytes / 4}, DType::kF32, output.device());
      add_(passing, 1);
    }
    return mul(of_classes(output, batch), 2.0);
  };
  run.options = mixed(0x1p10);
  expect_the_same(run, 5);
}

TEST(StepGraph, waits_as_often_and_launches_less) {
  ScopedEmulatedDevice emulated;
  Training run = perceptron();
  run.options = mixed(0x1p10);
  const std::unique_ptr<Trainer> plain = make(run, Steps::kPlain), graphs = make(run, Steps::kGraphs);
  for (Trainer* trainer : {plain.get(), graphs.get()}) {
    for (int i = 0; i < 3; ++i) trainer->step();
  }
  const std::uint64_t waits = emulated.device.waits, replays = emulated.device.replays;
  plain->step();
  const std::uint64_t plain_waits = emulated.device.waits - waits;
  graphs->step();
  EXPECT_EQ(emulated.device.waits - waits, 2 * plain_waits);
  EXPECT_EQ(emulated.device.replays - replays, 2U);
}

TEST(StepGraph, runs_op_by_op_while_somebody_wants_ops_and_goes_on_afterwards) {
  ScopedEmulatedDevice emulated;
  Training run = transformer();
  run.options = mixed(0x1p14);
  const auto expected = lines_of(run, Steps::kPlain, 9);
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.steps(4);
  WantsOps observer;
  {
    const HookHandle handle = add_observer(observer);
    ledger.steps(2);
  }
  EXPECT_GT(observer.ops, 0);
  const int told = observer.ops;
  ledger.steps(3);
  EXPECT_EQ(observer.ops, told);
  EXPECT_EQ(ledger.lines(), expected);
  EXPECT_EQ(trainer->graph_use().steps, 6U);
  EXPECT_EQ(emulated.device.captures, 2U);
}

TEST(StepGraph, runs_batches_of_another_shape_op_by_op) {
  Training run = perceptron();
  run.batches = [inner = run.batches, small = digits_train_batches(5, 3, DType::kF32)](std::uint32_t step) {
    return step % 3 == 2 ? small(step) : inner(step);
  };
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(run, Steps::kPlain, 9);
  GraphUse use;
  EXPECT_EQ(lines_of(run, Steps::kGraphs, 9, &use), expected);
  EXPECT_EQ(use.steps, 5U);  // not the first one, nor those of another shape
}

TEST(StepGraph, adds_to_gradients_that_a_skipped_step_kept_op_by_op) {
  Training run = perceptron();
  run.options = mixed(0x1p24);
  run.options.keep_skipped_gradients = true;
  ScopedEmulatedDevice emulated;
  GraphUse use;
  EXPECT_EQ(lines_of(run, Steps::kGraphs, 10, &use), lines_of(run, Steps::kPlain, 10));
  EXPECT_LT(use.steps, 9U);
}

TEST(StepGraph, is_restored_to_a_snapshot_like_any_run) {
  ScopedEmulatedDevice emulated;
  Training run = transformer();
  run.options = mixed(0x1p14);
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.steps(4);
  const auto snapshot = trainer->snapshot();
  std::vector<double> first, second;
  for (int i = 0; i < 3; ++i) first.push_back(trainer->step().loss);
  trainer->restore(*snapshot);
  for (int i = 0; i < 3; ++i) second.push_back(trainer->step().loss);
  EXPECT_EQ(first, second);
}

class Quiet : public Observer {};

TEST(StepGraph, is_replayed_op_by_op_for_whoever_asks_and_goes_on_as_if_nobody_had) {
  Training run = transformer();
  run.options = mixed(0x1p14);
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(run, Steps::kPlain, 6);
  const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs);
  trainer->keep_for_replay(true);
  Ledger ledger(*trainer);
  for (int i = 0; i < 6; ++i) {
    ledger.step();
    if (i % 2 == 0) continue;
    WantsOps observer;
    OptimizerCopy none;
    const Replayed refused = trainer->replay(observer, &none);
    EXPECT_THAT(refused.refused, HasSubstr("no copy of them was kept"));
  }
  EXPECT_EQ(ledger.lines(), expected);
  // at its door
  Quiet quiet;
  double replayed = 0;
  trainer->set_door_callback([&](Trainer& at_door) {
    const Replayed again = at_door.replay(quiet);
    EXPECT_TRUE(again.ran) << again.refused;
    replayed = again.result.loss;
  });
  const std::uint64_t steps = trainer->graph_use().steps;
  EXPECT_EQ(trainer->step().loss, replayed);
  EXPECT_EQ(trainer->graph_use().steps, steps + 1);
}

TEST(StepGraph, keeps_its_memory_apart_until_it_ends) {
  ScopedEmulatedDevice emulated;
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  for (int i = 0; i < 3; ++i) trainer->step();
  const std::uint64_t kept = trainer->graph_use().bytes, used = emulated.device.memory().used;
  EXPECT_GT(kept, 0U);
  trainer->optimizer().zero_grad();
  EXPECT_EQ(emulated.device.memory().used, used);  // gradients are the graph's
  trainer->use_graphs(false);
  EXPECT_LE(emulated.device.memory().used + kept, used);
  EXPECT_EQ(trainer->graph_use().bytes, 0U);
  trainer->step();
}

TEST(StepGraph, throws_what_a_step_op_by_op_throws_of_a_bad_label) {
  Training run = perceptron();
  run.batches = [inner = run.batches](std::uint32_t step) {
    Batch batch = inner(step);
    if (step == 3) batch.targets.data<std::int64_t>()[5] = 10;
    return batch;
  };
  ScopedEmulatedDevice emulated;
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    const std::unique_ptr<Trainer> trainer = make(run, steps);
    for (int i = 0; i < 3; ++i) trainer->step();
    try {
      trainer->step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::invalid_argument& e) {
      EXPECT_STREQ(e.what(), "[nll_loss] expected target from 0 to 9, got 10 at position 5");
    }
  }
}

// Marks and scaler events, as an observer that wants no ops hears them.
class Told : public Observer {
 public:
  bool wants_ops() const noexcept override { return false; }
  void on_step_begin(std::uint32_t step) noexcept override { add("step " + std::to_string(step)); }
  void on_micro_batch(std::uint32_t m, std::span<const std::int64_t> ids) noexcept override {
    add("micro-batch " + std::to_string(m) + " of " + std::to_string(ids.size()) + " from " + std::to_string(ids[0]));
  }
  void on_mark(MarkKind kind, std::string_view path, const Tensor& tensor) noexcept override {
    add(std::string(mark_kind_name(kind)) + " " + std::string(path) + " in " + current_module() + " " +
        std::string(phase_name(current_phase())) + " " + std::to_string(tensor.at(0)));
  }
  void on_scaler(const ScalerEvent& event) noexcept override {
    add("scaler " + std::to_string(static_cast<int>(event.action)) + " " + std::to_string(event.scale));
  }
  void on_optimizer_begin() noexcept override { add("optimizer"); }
  void on_optimizer_end(bool skipped) noexcept override { add(skipped ? "skipped" : "ran"); }
  void on_step_end(std::uint32_t step, double loss, double, double, bool) noexcept override {
    add("end " + std::to_string(step) + " " + std::to_string(loss));
  }
  std::vector<std::string> lines;

 private:
  void add(std::string line) { lines.push_back(std::move(line)); }
};

TEST(StepGraph, tells_who_wants_no_ops_the_same_in_the_same_order) {
  Training run = transformer();
  run.options = mixed(0x1p22);
  run.options.micro_batches = 2;
  run.options.clip_norm = 1;
  ScopedEmulatedDevice emulated;
  std::map<Steps, std::vector<std::string>> told;
  for (const Steps steps : {Steps::kPlain, Steps::kGraphs}) {
    const std::unique_ptr<Trainer> trainer = make(run, steps);
    Told observer;
    const HookHandle handle = add_observer(observer);
    for (int i = 0; i < 8; ++i) trainer->step();
    told[steps] = observer.lines;
    EXPECT_EQ(trainer->graph_use().steps, steps == Steps::kGraphs ? 7U : 0U);
  }
  EXPECT_EQ(told[Steps::kGraphs], told[Steps::kPlain]);
}

}  // namespace
}  // namespace nanhunt::engine::testing
