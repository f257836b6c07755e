// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/trainer.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine {
namespace {

using testing::bytes_of;
using testing::EventLog;
using Lines = std::vector<std::string>;

// Counts its calls in a buffer and scales by 1 + count / 8: replaying needs the buffer back.
class Counting : public Module {
 public:
  explicit Counting(DType dtype)
      : calls_(register_buffer("calls", Tensor::zeros({1}, dtype))),
        net_(register_module("net", std::make_unique<Mlp>(MlpOptions{.sizes = {64, 16, 10}, .dtype = dtype}))) {}

 protected:
  Tensor forward(const Tensor& input) override {
    add_(calls_, 1.0);
    return mul(net_(input), 1 + calls_.item() / 8);
  }

 private:
  Tensor& calls_;
  Mlp& net_;
};

std::unique_ptr<Trainer> make_trainer(const OptimizerOptions& options = {}, DType dtype = DType::kF32) {
  auto model = std::make_unique<Counting>(dtype);
  auto optimizer = make_optimizer(model->named_parameters(), options);
  return std::make_unique<Trainer>(
      std::move(model), std::move(optimizer), digits_train_batches(16, 3, dtype),
      [](const Tensor& output, const Batch& batch) { return cross_entropy(to(output, DType::kF32), batch.targets); });
}

TEST(Trainer, tells_observers_about_a_step_in_the_documented_order) {
  // given a one-layer run on two samples
  auto model = std::make_unique<Sequential>();
  RandomStream random(1, 0);
  model->append("fc1", std::make_unique<Linear>(64, 10, random));
  auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "sgd", .lr = 0.25, .momentum = 0.9});
  Trainer trainer(
      std::move(model), std::move(optimizer),
      [](std::uint32_t) {
        return make_digits_batch(std::vector<std::int64_t>{7, 3}, DType::kF32);
      },
      [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); });
  EventLog log;
  const HookHandle handle = add_observer(log);
  // when it trains
  const StepResult first = trainer.step();
  // then
  EXPECT_EQ(log.lines, (Lines{
                           "step 0",
                           "mark parameter fc1.weight",
                           "mark parameter fc1.bias",
                           "mark state fc1.weight.momentum_buffer",
                           "mark state fc1.bias.momentum_buffer",
                           "batch 0 [7 3]",
                           "mark batch inputs",
                           "mark label targets",
                           "enter ",
                           "enter fc1",
                           "op forward fc1 t",
                           "op forward fc1 addmm",
                           "exit fc1",
                           "exit ",
                           "op loss <loss> log_softmax",
                           "op loss <loss> nll_loss",
                           "mark loss loss",
                           "op backward <loss> nll_loss_backward",
                           "op backward <loss> log_softmax_backward",
                           "op backward fc1 addmm_backward",
                           "op backward fc1 t_backward",
                           "mark boundary_gradient fc1.weight",
                           "mark boundary_gradient fc1.bias",
                           "boundary",
                           "op optimizer fc1.weight mul_",
                           "op optimizer fc1.weight add_",
                           "op optimizer fc1.weight add_",
                           "mark parameter fc1.weight",
                           "mark state fc1.weight.momentum_buffer",
                           "op optimizer fc1.bias mul_",
                           "op optimizer fc1.bias add_",
                           "op optimizer fc1.bias add_",
                           "mark parameter fc1.bias",
                           "mark state fc1.bias.momentum_buffer",
                           "stepped",
                           "end 0",
                       }));
  EXPECT_EQ(log.last_loss, first.loss);
  EXPECT_EQ(log.last_lr, 0.25);
  // and the marks of the start are not repeated
  log.lines.clear();
  EXPECT_EQ(trainer.step().step, 1u);
  EXPECT_EQ(log.lines[0], "step 1");
  EXPECT_EQ(log.lines[1], "batch 0 [7 3]");
  EXPECT_EQ(trainer.next_step(), 2u);
}

TEST(Trainer, marks_buffers_at_the_start_and_whenever_they_changed) {
  auto trainer = make_trainer();
  EventLog log;
  const HookHandle handle = add_observer(log);
  trainer->step();
  EXPECT_EQ(log.starting_with("mark buffer"), (Lines{"mark buffer calls", "mark buffer calls"}));
  EXPECT_LT(log.index_of("mark buffer calls"), log.index_of("mark batch inputs"));
  EXPECT_EQ(log.lines.end()[-2], "mark buffer calls");
}

TEST(Trainer, tells_an_observer_that_comes_late_what_the_run_starts_from) {
  auto trainer = make_trainer();
  trainer->step();
  EventLog log;
  const HookHandle handle = add_observer(log);
  trainer->step();
  EXPECT_LT(log.index_of("mark parameter net.fc1.weight"), log.index_of("mark batch inputs"));
}

TEST(Trainer, calls_the_boundary_with_gradients_in_place_before_anything_changed) {
  auto trainer = make_trainer();
  const auto before = bytes_of(trainer->model().named_parameters());
  int calls = 0;
  trainer->set_boundary_callback([&](Trainer& at_boundary) {
    ++calls;
    EXPECT_EQ(&at_boundary, trainer.get());
    for (const NamedTensor& entry : at_boundary.optimizer().parameters()) EXPECT_TRUE(entry.tensor.grad().defined());
    EXPECT_EQ(bytes_of(at_boundary.model().named_parameters()), before);
  });
  trainer->step();
  EXPECT_EQ(calls, 1);
  EXPECT_NE(bytes_of(trainer->model().named_parameters()), before);
}

TEST(Trainer, changes_nothing_when_it_is_observed) {
  auto plain = make_trainer(), watched = make_trainer();
  EventLog log;
  {
    const HookHandle handle = add_observer(log);
    for (int i = 0; i < 5; ++i) watched->step();
  }
  for (int i = 0; i < 5; ++i) plain->step();
  EXPECT_FALSE(log.lines.empty());
  EXPECT_EQ(bytes_of(*plain), bytes_of(*watched));
}

struct ReplayCase {
  std::string name;
  OptimizerOptions options;
  DType dtype;
};

class Replay : public ::testing::TestWithParam<ReplayCase> {};
INSTANTIATE_TEST_SUITE_P(
    Runs, Replay,
    ::testing::Values(ReplayCase{"sgd_momentum", {.algorithm = "sgd", .lr = 0.05, .momentum = 0.9}, DType::kF32},
                      ReplayCase{"adam_fp16_masters", {.lr = 1e-2, .fp32_masters = true}, DType::kF16},
                      ReplayCase{"adam_bf16", {.lr = 1e-2}, DType::kBF16},
                      ReplayCase{"adamw_fused",
                                 {.algorithm = "adamw", .weight_decay = 0.1, .impl = OptimizerImpl::kFused},
                                 DType::kF32},
                      ReplayCase{"adam_fp16_going_nan", {.lr = 1e-3}, DType::kF16},
                      ReplayCase{"adam_fp64", {.lr = 1e-2}, DType::kF64}),
    [](const auto& given) { return given.param.name; });

TEST_P(Replay, from_a_snapshot_gives_the_same_bits) {
  // given a run that is two steps old, and a snapshot of it
  auto trainer = make_trainer(GetParam().options, GetParam().dtype);
  for (int i = 0; i < 2; ++i) trainer->step();
  const auto snapshot = trainer->snapshot();
  const auto at_snapshot = bytes_of(*trainer);
  std::vector<std::vector<std::byte>> trail;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(trainer->step().step, static_cast<std::uint32_t>(2 + i));
    trail.push_back(bytes_of(*trainer));
  }
  // when it is put back twice
  for (int round = 0; round < 2; ++round) {
    trainer->restore(*snapshot);
    EXPECT_EQ(trainer->next_step(), 2u);
    EXPECT_EQ(bytes_of(*trainer), at_snapshot);
    // then every step repeats itself bit for bit
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(trainer->step().step, static_cast<std::uint32_t>(2 + i));
      EXPECT_EQ(bytes_of(*trainer), trail[static_cast<std::size_t>(i)]) << "step " << 2 + i;
    }
  }
}

TEST_P(Replay, in_a_new_trainer_of_the_same_run_gives_the_same_bits) {
  auto first = make_trainer(GetParam().options, GetParam().dtype);
  for (int i = 0; i < 4; ++i) first->step();
  const auto snapshot = first->snapshot();
  const StepResult fifth = first->step();
  auto second = make_trainer(GetParam().options, GetParam().dtype);
  second->restore(*snapshot);
  const StepResult repeated = second->step();
  EXPECT_EQ(repeated.step, fifth.step);
  EXPECT_EQ(bytes_of(*second), bytes_of(*first));
}

TEST(Trainer, refuses_missing_parts_and_snapshots_of_other_runs) {
  EXPECT_THROW(Trainer(nullptr, nullptr, {}, {}), std::invalid_argument);
  auto adam = make_trainer(), sgd = make_trainer({.algorithm = "sgd"});
  EXPECT_THROW(sgd->restore(*adam->snapshot()), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
