// SPDX-License-Identifier: Apache-2.0
// What no graph is made of, and how the run goes on; the device's side of graphs; and all of it on a GPU.
#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "src/engine/backend.h"
#include "src/engine/capture.h"
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

// What is fed has a place that is made before the capture.
TEST(StepGraph, is_refused_where_more_lists_are_fed_than_there_is_room_for) {
  Training run = perceptron();
  run.batches = digits_train_batches(1000, 3, DType::kF32);
  run.loss = [](const Tensor& output, const Batch& batch) {
    Tensor sum = of_classes(output, batch);
    for (int i = 0; i < 160; ++i) sum = add(sum, of_classes(output, batch));
    return sum;
  };
  expect_refused(run, "more is fed to a graph than there is room for");
}

TEST(CapturedWork, has_room_for_what_is_fed_and_not_for_a_byte_more) {
  ScopedEmulatedDevice emulated;
  Tensor counter = Tensor::zeros({4}, DType::kF32, kEmulated);
  for (const std::size_t bytes : {std::size_t{48}, std::size_t{49}}) {
    std::string why;
    const auto work = CapturedWork::capture(
        kEmulated, 64,
        [&] {
          add_(counter, 1);
          CapturedWork::current()->feed(3, [](void*) {});  // takes 16
          CapturedWork::current()->feed(bytes, [](void*) {});
        },
        why);
    EXPECT_EQ(work != nullptr, bytes == 48);
    EXPECT_EQ(why, bytes == 48 ? "" : "more is fed to a graph than there is room for");
  }
  EXPECT_EQ(counter.at(0), 0);
}

// What was refused is tried again after 4 steps, then after 8 more, and so on.
TEST(StepGraph, that_was_refused_in_one_step_is_captured_in_a_later_one) {
  Training run = perceptron();
  const auto with = [&run] {
    Training made = run;
    made.loss = [reads = std::make_shared<int>(3)](const Tensor& output, const Batch& batch) {
      const Tensor loss = of_classes(output, batch);
      if (*reads == 0 || --*reads == 0) return loss;
      loss.item();
      return loss;
    };
    return made;
  };
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(with(), Steps::kPlain, 12);
  GraphUse use;
  EXPECT_EQ(lines_of(with(), Steps::kGraphs, 12, &use), expected);
  EXPECT_EQ(use.why_not, "");
  EXPECT_EQ(use.steps, 6U);
  EXPECT_EQ(use.updates, 6U);
  EXPECT_EQ(steps_op_by_op(use, ""), 6U);
  EXPECT_EQ(steps_op_by_op(use, "reading contents on the host cannot be part of a graph"), 5U);
}

TEST(StepGraph, that_there_was_no_memory_for_is_captured_once_there_is_some) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(perceptron(), Steps::kPlain, 12);
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.step();
  const auto limit = std::exchange(emulated.device.limit, emulated.device.memory().used + 400'000);
  ledger.steps(4);
  EXPECT_EQ(trainer->graph_use().steps, 0U);
  emulated.device.limit = limit;
  ledger.steps(7);
  EXPECT_EQ(trainer->graph_use().why_not, "");
  EXPECT_EQ(trainer->graph_use().steps, 6U);
  EXPECT_EQ(ledger.lines(), expected);
}

TEST(StepGraph, that_a_foreign_gradient_stood_against_is_captured_once_it_is_frozen) {
  ScopedEmulatedDevice emulated;
  const Training run = perceptron();
  auto model = run.model();
  model->to(kEmulated);
  auto parameters = model->named_parameters();
  Tensor foreign = parameters.back().tensor;
  parameters.pop_back();
  auto optimizer = make_optimizer(std::move(parameters), run.optimizer);
  Trainer trainer(std::move(model), std::move(optimizer), moved(run.batches, kEmulated), run.loss);
  trainer.use_graphs(true);
  for (int i = 0; i < 3; ++i) trainer.step();
  EXPECT_EQ(trainer.graph_use().steps, 0U);
  foreign.set_requires_grad(false);
  for (int i = 0; i < 3; ++i) trainer.step();
  EXPECT_EQ(trainer.graph_use().why_not, "");
  EXPECT_EQ(trainer.graph_use().steps, 2U);  // not the first one
}

// The device has no more memory while the optimizer runs.
class FullAtTheDoor : public Observer {
 public:
  explicit FullAtTheDoor(testing_support::EmulatedDevice& device) : device_(device) {}
  bool wants_ops() const noexcept override { return false; }
  void on_optimizer_begin() noexcept override { limit_ = std::exchange(device_.limit, device_.memory().used); }
  void on_optimizer_end(bool) noexcept override { device_.limit = limit_; }

 private:
  testing_support::EmulatedDevice& device_;
  std::uint64_t limit_ = 0;
};

TEST(StepGraph, whose_update_was_refused_once_gets_it_later) {
  ScopedEmulatedDevice emulated;
  const auto expected = lines_of(perceptron(), Steps::kPlain, 14);
  const std::unique_ptr<Trainer> trainer = make(perceptron(), Steps::kGraphs);
  Ledger ledger(*trainer);
  ledger.step();
  FullAtTheDoor full(emulated.device);
  {
    const HookHandle handle = add_observer(full);
    ledger.step();
  }
  EXPECT_EQ(trainer->graph_use().steps, 1U);
  EXPECT_EQ(trainer->graph_use().updates, 0U);
  EXPECT_THAT(trainer->graph_use().why_no_update, HasSubstr("there is no more memory"));
  ledger.steps(12);
  EXPECT_EQ(trainer->graph_use().why_no_update, "");
  EXPECT_EQ(trainer->graph_use().updates, 8U);
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
