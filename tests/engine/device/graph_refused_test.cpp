// SPDX-License-Identifier: Apache-2.0
// What no graph is made of, and how the run goes on; the device's side of graphs; and all of it on a GPU.
#include <gmock/gmock.h>

#include <map>

#include "src/engine/backend.h"
#include "tests/engine/device/graph_support.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;

// What was refused runs as it always did, and says why.
void expect_refused(const Training& run, const std::string& why) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(run, Steps::kPlain, 5);
  GraphUse use;
  EXPECT_EQ(lines_of(run, Steps::kGraphs, 5, &use), expected);
  EXPECT_THAT(use.why_not, HasSubstr(why));
  EXPECT_EQ(use.steps, 0U);
  EXPECT_EQ(use.bytes, 0U);
}

TEST(StepGraph, is_refused_where_the_loss_reads_contents_and_the_run_goes_on) {
  Training run = transformer();
  run.loss = [](const Tensor& output, const Batch& batch) {
    const Tensor loss = next_token_loss(output, batch);
    return loss.item() > 100 ? mul(loss, 2.0) : loss;
  };
  expect_refused(run, "reading contents on the host cannot be part of a graph");
}

TEST(StepGraph, is_refused_where_contents_of_the_host_are_copied_to_the_device) {
  Training run = perceptron();
  run.loss = [](const Tensor& output, const Batch& batch) {
    return mul(of_classes(output, batch), Tensor::full({}, 2, DType::kF32).on(kEmulated));
  };
  expect_refused(run, "copying contents of the host to the device cannot be part of a graph");
}

TEST(StepGraph, is_refused_where_an_op_runs_on_the_cpu) {
  Training run = perceptron();
  const Tensor half = Tensor::full({}, 0.5, DType::kF32);
  run.loss = [half](const Tensor& output, const Batch& batch) {
    return mul(of_classes(output, batch), add(half, half));
  };
  expect_refused(run, "an op on the CPU cannot be part of a graph");
}

TEST(StepGraph, is_refused_where_unlisted_streams_are_drawn_from) {
  Training run = perceptron();
  run.batches = [inner = run.batches](std::uint32_t step) { return inner(step); };
  for (const bool on_host : {true, false}) {
    const auto with = [&run, on_host] {
      Training made = run;
      made.loss = [random = std::make_shared<RandomStream>(7, 7), on_host](const Tensor& output, const Batch& batch) {
        if (on_host) return mul(of_classes(output, batch), 1 + random->uniform());
        return of_classes(dropout(output, 0.5, *random), batch);
      };
      return made;
    };
    ScopedEmulatedDevice emulated;
    const auto expected = lines_of(with(), Steps::kPlain, 5);
    GraphUse use;
    EXPECT_EQ(lines_of(with(), Steps::kGraphs, 5, &use), expected);
    EXPECT_THAT(use.why_not, HasSubstr(on_host ? "the host draws" : "does not list"));
  }
}

TEST(StepGraph, is_refused_where_a_gradient_is_not_the_optimizers) {
  ScopedEmulatedDevice emulated;
  const Training run = perceptron();
  auto model = run.model();
  model->to(kEmulated);
  auto parameters = model->named_parameters();
  parameters.pop_back();
  auto optimizer = make_optimizer(std::move(parameters), run.optimizer);
  Trainer trainer(std::move(model), std::move(optimizer), moved(run.batches, kEmulated), run.loss);
  trainer.use_graphs(true);
  for (int i = 0; i < 3; ++i) trainer.step();
  EXPECT_EQ(trainer.graph_use().why_not,
            "the gradient of fc2.bias, which the optimizer does not have, adds up from step to step");
}

TEST(StepGraph, is_refused_by_a_device_that_has_none) {
  ScopedEmulatedDevice emulated;
  emulated.device.graphs = false;
  GraphUse use;
  const auto lines = lines_of(perceptron(), Steps::kGraphs, 4, &use);
  EXPECT_EQ(use.why_not, "this emulated device has no graphs");
  EXPECT_EQ(lines, lines_of(perceptron(), Steps::kPlain, 4));
}

TEST(StepGraph, is_refused_on_the_cpu) {
  const Training run = perceptron();
  auto model = run.model();
  auto optimizer = make_optimizer(model->named_parameters(), run.optimizer);
  Trainer trainer(std::move(model), std::move(optimizer), run.batches, run.loss);
  trainer.use_graphs(true);
  for (int i = 0; i < 2; ++i) trainer.step();
  EXPECT_EQ(trainer.graph_use().why_not, "the CPU has no graphs");
}

TEST(StepGraph, is_refused_where_there_is_no_memory_for_it_and_the_run_goes_on) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(perceptron(), Steps::kPlain, 5);
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.step();
  emulated.device.limit = emulated.device.memory().used + 400'000;  // for a step, not for a graph beside it
  ledger.steps(4);
  EXPECT_THAT(trainer->graph_use().why_not, HasSubstr("there is no more memory"));
  EXPECT_EQ(ledger.lines(), expected);
}

// Of the device alone.

TEST(DeviceGraph, does_nothing_until_it_is_replayed_and_then_all_of_it_each_time) {
  ScopedEmulatedDevice emulated;
  kernels::DeviceBackend& device = emulated.device;
  Tensor counter = Tensor::zeros({4}, DType::kF32, kEmulated);
  std::string why;
  ASSERT_TRUE(device.begin_capture(why)) << why;
  add_(counter, 1);
  mul_(counter, 2);
  const auto graph = device.end_capture(why);
  ASSERT_NE(graph, nullptr) << why;
  EXPECT_EQ(counter.at(0), 0);
  graph->replay();
  EXPECT_EQ(counter.at(3), 2);
  graph->replay();
  EXPECT_EQ(counter.at(0), 6);
}

TEST(DeviceGraph, refuses_what_waits_or_brings_contents_and_goes_on) {
  ScopedEmulatedDevice emulated;
  kernels::DeviceBackend& device = emulated.device;
  Tensor there = Tensor::full({2}, 1, DType::kF32, kEmulated);
  std::string why;
  ASSERT_TRUE(device.begin_capture(why));
  EXPECT_FALSE(device.begin_capture(why));
  EXPECT_EQ(why, "a graph is being captured already");
  EXPECT_THROW(there.item(), std::exception);
  EXPECT_THROW(there.at(0), std::runtime_error);
  EXPECT_THROW(device.wait(), std::runtime_error);
  EXPECT_THROW(Tensor::full({2}, 1, DType::kF32).on(kEmulated), std::runtime_error);
  EXPECT_THROW(static_cast<void>(device.open_readings({}, why)), std::runtime_error);
  add_(there, 1);
  const auto graph = device.end_capture(why);
  ASSERT_NE(graph, nullptr);
  graph->replay();
  EXPECT_EQ(there.at(1), 2);
  EXPECT_EQ(device.end_capture(why), nullptr);
  EXPECT_EQ(why, "no graph is being captured");
}

TEST(DeviceGraph, keeps_memory_that_was_handed_out_before_and_given_back_meanwhile) {
  ScopedEmulatedDevice emulated;
  kernels::DeviceBackend& device = emulated.device;
  Tensor kept = Tensor::zeros({2}, DType::kF32, kEmulated), result;
  std::string why;
  {
    Tensor before = Tensor::full({2}, 3, DType::kF32, kEmulated);
    ASSERT_TRUE(device.begin_capture(why));
    result = add(before, kept);
  }
  const std::uint64_t used = device.memory().used;
  auto graph = device.end_capture(why);
  graph->replay();
  const Tensor other = Tensor::full({2}, 9, DType::kF32, kEmulated);  // would lie where it lay
  graph->replay();
  EXPECT_EQ(result.at(0), 3);
  EXPECT_EQ(device.memory().used, used + other.storage()->bytes());
  graph.reset();
  EXPECT_EQ(device.memory().used, used);
  EXPECT_EQ(result.at(1), 3);  // what is still in use outlives the graph
}

class OnGpuGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(kCuda); !why.empty()) GTEST_SKIP() << "no GPU to test on: " << why;
  }
  static constexpr Device kCuda{DeviceKind::kCuda, 0};
};

TEST_F(OnGpuGraphs, give_the_bits_of_steps_op_by_op) {
  std::map<std::string, Training> runs = {
      {"perceptron", perceptron()}, {"transformer", transformer()}, {"convolutions", convolutions()}};
  runs["mixed perceptron"] = perceptron();
  runs["mixed perceptron"].options = mixed(0x1p30);
  runs["mixed transformer"] = transformer();
  runs["mixed transformer"].options = mixed(0x1p18);
  runs["mixed transformer"].options.micro_batches = 2;
  runs["mixed transformer"].options.clip_norm = 1;
  for (const auto& [name, run] : runs) {
    SCOPED_TRACE(name);
    GraphUse use;
    const auto expected = lines_of(run, Steps::kPlain, 12, nullptr, kCuda);
    EXPECT_TRUE(lines_of(run, Steps::kGraphs, 12, &use, kCuda) == expected);
    EXPECT_EQ(use.why_not, "");
    EXPECT_EQ(use.why_no_update, "");
    EXPECT_EQ(use.steps, 11U);
  }
}

TEST_F(OnGpuGraphs, go_on_between_steps_op_by_op_and_give_their_memory_back) {
  const Training run = transformer();
  const auto expected = lines_of(run, Steps::kPlain, 9, nullptr, kCuda);
  const std::uint64_t before = device_bytes(kCuda).used;
  {
    const std::unique_ptr<Trainer> trainer = make(run, Steps::kGraphs, kCuda);
    Ledger ledger(*trainer);
    ledger.steps(4);
    WantsOps observer;
    {
      const HookHandle handle = add_observer(observer);
      ledger.steps(2);
    }
    ledger.steps(3);
    EXPECT_TRUE(ledger.lines() == expected);
    EXPECT_EQ(trainer->graph_use().steps, 6U);
  }
  EXPECT_EQ(device_bytes(kCuda).used, before);
}

TEST_F(OnGpuGraphs, are_refused_where_the_loss_reads_contents_and_the_run_goes_on) {
  Training run = perceptron();
  run.loss = [](const Tensor& output, const Batch& batch) {
    const Tensor loss = of_classes(output, batch);
    return loss.item() > 100 ? mul(loss, 2.0) : loss;
  };
  GraphUse use;
  const auto expected = lines_of(run, Steps::kPlain, 5, nullptr, kCuda);
  EXPECT_TRUE(lines_of(run, Steps::kGraphs, 5, &use, kCuda) == expected);
  EXPECT_THAT(use.why_not, HasSubstr("reading contents on the host cannot be part of a graph"));
}

}  // namespace
}  // namespace nanhunt::engine::testing
