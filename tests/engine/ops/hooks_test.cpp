// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/hooks.h"

#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "nanhunt/engine/ops.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;

struct Counter : Observer {
  int ops = 0;
  std::vector<std::uint64_t> released;
  void on_op(const OpCall&) noexcept override { ++ops; }
  void on_storage_released(std::uint64_t generation) noexcept override { released.push_back(generation); }
};

void run_an_op() { neg(Tensor::zeros({1}, DType::kF32)); }

TEST(Hooks, a_moved_handle_keeps_its_observer_and_the_old_one_is_empty) {
  // given
  Counter counter;
  HookHandle first = add_observer(counter);
  // when
  HookHandle second = std::move(first);
  first.remove();
  run_an_op();
  // then
  EXPECT_EQ(counter.ops, 1);
  second = HookHandle();
  run_an_op();
  EXPECT_EQ(counter.ops, 1);
  EXPECT_FALSE(has_observers());
}

TEST(Hooks, every_observer_is_told_and_others_stay_when_one_leaves) {
  Counter a, b;
  const HookHandle keep_a = add_observer(a);
  HookHandle keep_b = add_observer(b);
  run_an_op();
  keep_b.remove();
  run_an_op();
  EXPECT_EQ(a.ops, 2);
  EXPECT_EQ(b.ops, 1);
}

TEST(Hooks, an_observer_may_remove_itself_and_release_tensors_while_it_is_told) {
  // given: an observer that leaves, and drops the last reference to a tensor, at the first op
  struct Leaver : Counter {
    HookHandle handle;
    Tensor held = Tensor::zeros({1}, DType::kF32);
    void on_op(const OpCall& call) noexcept override {
      Counter::on_op(call);
      held = Tensor();
      handle.remove();
    }
  } leaver;
  Counter after;
  leaver.handle = add_observer(leaver);
  const HookHandle handle = add_observer(after);
  const std::uint64_t generation = leaver.held.storage()->generation();
  // when
  run_an_op();
  run_an_op();
  // then
  EXPECT_EQ(leaver.ops, 1);
  EXPECT_EQ(after.ops, 2);
  EXPECT_THAT(leaver.released, ElementsAre(generation));
}

TEST(Hooks, observers_hear_only_their_own_thread) {
  Counter counter;
  const HookHandle handle = add_observer(counter);
  std::thread(run_an_op).join();
  EXPECT_EQ(counter.ops, 0);
  EXPECT_TRUE(counter.released.empty());
}

TEST(Hooks, a_storage_is_released_once_with_the_last_tensor_that_uses_it) {
  Counter counter;
  const HookHandle handle = add_observer(counter);
  Tensor x = Tensor::zeros({4}, DType::kF32);
  const std::uint64_t generation = x.storage()->generation();
  Tensor part = narrow(x, 0, 0, 2);
  x = Tensor();
  EXPECT_TRUE(counter.released.empty());
  part = Tensor();
  EXPECT_THAT(counter.released, ElementsAre(generation));
}

TEST(Hooks, tensors_and_handles_may_outlive_their_threads_list_of_observers) {
  // given: thread-locals made before the list, and so destroyed after it
  std::thread([] {
    static Counter counter;
    thread_local Tensor late;
    thread_local HookHandle handle;
    late = Tensor::zeros({1}, DType::kF32);
    handle = add_observer(counter);
    run_an_op();
    EXPECT_EQ(counter.ops, 1);
  }).join();
  // then: nothing was told late, and nothing crashed
  EXPECT_FALSE(has_observers());
}

TEST(Hooks, phase_and_module_nest_and_come_back) {
  EXPECT_EQ(current_phase(), Phase::kForward);
  EXPECT_EQ(current_module(), "");
  {
    const ScopedPhase phase(Phase::kOptimizer);
    const ScopedModule module("fc1.weight");
    {
      const ScopedModule inner("fc2.weight");
      EXPECT_EQ(current_module(), "fc2.weight");
    }
    EXPECT_EQ(current_phase(), Phase::kOptimizer);
    EXPECT_EQ(current_module(), "fc1.weight");
  }
  EXPECT_EQ(current_phase(), Phase::kForward);
  EXPECT_EQ(current_module(), "");
}

TEST(Hooks, every_notification_reaches_its_callback) {
  struct Log : Observer {
    std::vector<std::string> lines;
    void on_module_enter(std::string_view path) noexcept override { lines.push_back("enter " + std::string(path)); }
    void on_module_exit(std::string_view path) noexcept override { lines.push_back("exit " + std::string(path)); }
    void on_step_begin(std::uint32_t step) noexcept override { lines.push_back("begin " + std::to_string(step)); }
    void on_micro_batch(std::uint32_t micro, std::span<const std::int64_t> ids) noexcept override {
      lines.push_back("batch " + std::to_string(micro) + " of " + std::to_string(ids.size()));
    }
    void on_mark(TensorRole kind, std::string_view path, const Tensor& tensor) noexcept override {
      lines.push_back("mark " + std::to_string(static_cast<int>(kind)) + " " + std::string(path) + " " +
                      std::to_string(tensor.numel()));
    }
    void on_optimizer_begin() noexcept override { lines.emplace_back("optimizer"); }
    void on_optimizer_end(bool skipped) noexcept override { lines.emplace_back(skipped ? "skipped" : "stepped"); }
    void on_step_end(std::uint32_t step, double loss, double, double, bool) noexcept override {
      lines.push_back("end " + std::to_string(step) + " " + std::to_string(static_cast<int>(loss)));
    }
  } log;
  const HookHandle handle = add_observer(log);
  const std::int64_t ids[] = {4, 5};
  notify_step_begin(7);
  notify_micro_batch(1, ids);
  notify_module_enter("fc1");
  notify_module_exit("fc1");
  notify_mark(TensorRole::kLoss, "loss", Tensor::zeros({}, DType::kF32));
  notify_optimizer_begin();
  notify_optimizer_end(true);
  notify_step_end(7, 2, 0, 1, true);
  EXPECT_THAT(log.lines, ElementsAre("begin 7", "batch 1 of 2", "enter fc1", "exit fc1", "mark 0 loss 1", "optimizer",
                                     "skipped", "end 7 2"));
}

}  // namespace
}  // namespace nanhunt::engine::testing
