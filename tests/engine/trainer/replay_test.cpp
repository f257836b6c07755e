// SPDX-License-Identifier: Apache-2.0
// A step run again gives the same step, and leaves nothing behind.
#include <gmock/gmock.h>

#include <cstring>
#include <functional>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "nanhunt/engine/trainer.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;

// What a step showed: every op's name and output bits, and the gradients at the optimizer boundary.
struct Log : Observer {
  std::vector<std::string> ops;
  std::vector<std::vector<std::byte>> outputs;
  std::vector<std::uint32_t> steps;
  void on_step_begin(std::uint32_t step) noexcept override { steps.push_back(step); }
  void on_op(const OpCall& call) noexcept override {
    ops.emplace_back(call.op);
    for (const OpArgument& out : call.outputs) outputs.push_back(bytes_of(*out.tensor));
  }
  static std::vector<std::byte> bytes_of(const Tensor& tensor) {
    const Tensor flat = tensor.clone();
    const auto* first = static_cast<const std::byte*>(flat.raw());
    return {first, first + static_cast<std::size_t>(flat.numel()) * dtype_size(flat.dtype())};
  }
};

// Calls back at the optimizer boundary and at the end of every step; wants no ops.
struct Moments : Observer {
  std::function<void()> boundary, end;
  bool wants_ops() const noexcept override { return false; }
  void on_optimizer_begin() noexcept override {
    if (boundary) boundary();
  }
  void on_step_end(std::uint32_t, double, double, double, bool) noexcept override {
    if (end) end();
  }
};

// All that a run carries on.
std::vector<std::byte> everything(Trainer& trainer) {
  std::vector<std::byte> all;
  const auto add = [&](const Tensor& tensor) {
    const std::vector<std::byte> bytes = Log::bytes_of(tensor);
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  for (const auto& [path, tensor] : trainer.model().named_parameters()) {
    add(tensor);
    if (tensor.grad().defined()) add(tensor.grad());
  }
  for (const auto& [path, tensor] : trainer.model().named_buffers()) add(tensor);
  for (const auto& [path, tensor] : trainer.optimizer().named_state()) add(tensor);
  for (const auto& [path, tensor] : trainer.optimizer().stepped()) {
    if (tensor.grad().defined()) add(tensor.grad());
  }
  std::vector<double> numbers;
  for (const std::int64_t count : trainer.optimizer().step_counts()) numbers.push_back(static_cast<double>(count));
  for (const RandomStream* stream : trainer.model().random_streams()) {
    numbers.push_back(static_cast<double>(stream->position()));
  }
  if (trainer.scaler() != nullptr) {
    for (const auto& [name, number] : trainer.scaler()->saved()) numbers.push_back(number);
  }
  const auto* first = reinterpret_cast<const std::byte*>(numbers.data());
  all.insert(all.end(), first, first + numbers.size() * sizeof(double));
  return all;
}

// Batch norm, a scale that starts too high and grows too fast, two micro-batches, clipping, kept gradients.
std::unique_ptr<Trainer> make_cnn() {
  CnnOptions model;
  model.channels = 2;
  auto cnn = std::make_unique<Cnn>(model);
  auto optimizer = make_optimizer(cnn->named_parameters(), {.algorithm = "adamw", .lr = 1e-3, .weight_decay = 0.01});
  TrainerOptions options;
  options.autocast = AutocastOptions{};
  options.scaler = GradScalerOptions{.init_scale = 0x1p24, .growth_interval = 3};
  options.micro_batches = 2;
  options.clip_norm = 1.0;
  options.keep_skipped_gradients = true;
  return std::make_unique<Trainer>(
      std::move(cnn), std::move(optimizer), digits_train_batches(8, 1, DType::kF32),
      [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); }, options);
}

// Dropout.
std::unique_ptr<Trainer> make_gpt() {
  GptOptions options{.layers = 1, .block = {}};
  options.block.dims = 16;
  options.block.context = 8;
  options.block.dropout = 0.2;
  auto gpt = std::make_unique<Gpt>(options);
  auto optimizer = make_optimizer(gpt->named_parameters(), {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9});
  return std::make_unique<Trainer>(std::move(gpt), std::move(optimizer), text_train_batches(2, 8, 1), next_token_loss);
}

// fp16 weights with masters, their gradients unscaled into them; a scale that starts too high and grows too fast.
std::unique_ptr<Trainer> make_half() {
  auto mlp = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 16, 10}, .dtype = DType::kF16});
  auto optimizer = make_optimizer(mlp->named_parameters(),
                                  {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .fp32_masters = true});
  TrainerOptions options;
  options.scaler = ApexScalerOptions{.init_scale = 0x1p24, .scale_window = 3};
  options.clip_norm = 1.0;
  return std::make_unique<Trainer>(
      std::move(mlp), std::move(optimizer), digits_train_batches(8, 1, DType::kF16),
      [](const Tensor& output, const Batch& batch) { return cross_entropy(to(output, DType::kF32), batch.targets); },
      options);
}

class ReplayedStep : public ::testing::TestWithParam<std::unique_ptr<Trainer> (*)()> {};
INSTANTIATE_TEST_SUITE_P(Runs, ReplayedStep, ::testing::Values(&make_cnn, &make_gpt, &make_half),
                         [](const auto& at) { return at.index == 0 ? "cnn" : at.index == 1 ? "gpt" : "half"; });

TEST_P(ReplayedStep, the_run_goes_on_as_if_no_step_had_been_run_again) {
  // given
  auto plain = GetParam()(), replayed = GetParam()();
  replayed->keep_for_replay(true);
  OptimizerCopy copy;
  Log log;
  Moments moments;
  int replays = 0;
  moments.boundary = [&] {
    copy.take(replayed->optimizer());
    replays += replayed->replay(log).ran ? 1 : 0;
  };
  moments.end = [&] { replays += replayed->replay(log, &copy).ran ? 1 : 0; };
  int skipped = 0;
  // when
  for (int i = 0; i < 40; ++i) {
    const StepResult a = plain->step();
    const HookHandle handle = add_observer(moments);
    const StepResult b = replayed->step();
    // then
    skipped += a.skipped ? 1 : 0;
    ASSERT_EQ(std::memcmp(&a.loss, &b.loss, sizeof a.loss), 0) << i;
    ASSERT_EQ(a.skipped, b.skipped) << i;
    ASSERT_EQ(everything(*plain), everything(*replayed)) << "step " << i;
  }
  EXPECT_EQ(replays, 80);
  EXPECT_EQ(skipped > 0, plain->scaler() != nullptr);
}

TEST_P(ReplayedStep, runs_the_very_ops_of_the_step_again_with_the_same_bits) {
  // given a trainer some steps on, and what its next step does
  auto trainer = GetParam()();
  trainer->keep_for_replay(true);
  for (int i = 0; i < 12; ++i) trainer->step();
  Log first;
  {
    const HookHandle handle = add_observer(first);
    trainer->step();
  }
  // when the same step is run again between steps, a skipped one without a copy
  auto twin = GetParam()();
  twin->keep_for_replay(true);
  OptimizerCopy copy;
  Moments moments;
  moments.boundary = [&] { copy.take(twin->optimizer()); };
  const HookHandle handle = add_observer(moments);
  for (int i = 0; i < 13; ++i) twin->step();
  Log second;
  const Replayed replayed = twin->replay(second, &copy);
  // then
  ASSERT_TRUE(replayed.ran) << replayed.refused;
  EXPECT_EQ(replayed.result.step, 12u);
  EXPECT_EQ(second.steps, std::vector<std::uint32_t>{12});
  EXPECT_EQ(first.ops, second.ops);
  EXPECT_EQ(first.outputs, second.outputs);
}

TEST(ReplayRefusal, a_step_that_began_before_anybody_asked_is_refused) {
  auto trainer = make_gpt();
  Log log;
  EXPECT_THAT(trainer->replay(log).refused, HasSubstr("keep_for_replay"));
  trainer->step();
  trainer->keep_for_replay(true);
  EXPECT_THAT(trainer->replay(log).refused, HasSubstr("began before"));
  EXPECT_TRUE(log.ops.empty());
}

TEST(ReplayRefusal, a_changed_step_is_refused_after_the_optimizer_without_a_copy) {
  auto trainer = make_gpt();
  trainer->keep_for_replay(true);
  trainer->step();
  Log log;
  EXPECT_THAT(trainer->replay(log).refused, HasSubstr("no copy"));
  // a copy of another moment is no copy of the optimizer boundary
  OptimizerCopy copy;
  copy.take(trainer->optimizer());
  EXPECT_THAT(trainer->replay(log, &copy).refused, HasSubstr("was written to"));
}

TEST(ReplayRefusal, a_batch_that_was_written_to_is_refused) {
  // given a loss that scales its targets in place
  auto mlp = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 64}});
  auto optimizer = make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 0.1});
  Trainer trainer(std::move(mlp), std::move(optimizer), upscaling_train_batches(4, 1, DType::kF32),
                  [](const Tensor& output, const Batch& batch) {
                    Tensor targets = batch.targets;
                    return mse_loss(output, mul_(targets, 2.0));
                  });
  trainer.keep_for_replay(true);
  Log log;
  Replayed replayed;
  trainer.set_boundary_callback([&](Trainer& at) { replayed = at.replay(log); });
  trainer.step();
  EXPECT_THAT(replayed.refused, HasSubstr("was written to after it was loaded"));
}

TEST(ReplayRefusal, what_the_step_throws_ends_the_replay_and_all_is_put_back) {
  // given a loss that fails from the second time on
  int calls = 0;
  auto mlp = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 10}});
  auto optimizer = make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 0.1});
  Trainer trainer(std::move(mlp), std::move(optimizer), digits_train_batches(4, 1, DType::kF32),
                  [&](const Tensor& output, const Batch& batch) {
                    if (++calls == 2) throw std::runtime_error("no more");
                    return cross_entropy(output, batch.targets);
                  });
  trainer.keep_for_replay(true);
  Log log;
  Replayed replayed;
  std::vector<std::byte> before, after;
  trainer.set_boundary_callback([&](Trainer& at) {
    before = everything(at);
    replayed = at.replay(log);
    after = everything(at);
  });
  // when
  trainer.step();
  // then
  EXPECT_FALSE(replayed.ran);
  EXPECT_THAT(replayed.refused, HasSubstr("no more"));
  EXPECT_EQ(before, after);
  EXPECT_FALSE(replaying());
}

TEST(Replaying, other_observers_hear_nothing_unless_they_want_replays) {
  struct Willing : Log {
    bool wants_replays() const noexcept override { return true; }
  } willing;
  Log other, asked;
  auto trainer = make_gpt();
  trainer->keep_for_replay(true);
  trainer->step();
  OptimizerCopy copy;
  Moments moments;
  moments.boundary = [&] { copy.take(trainer->optimizer()); };
  const HookHandle boundary = add_observer(moments);
  trainer->step();
  // when
  const HookHandle a = add_observer(other), b = add_observer(willing);
  ASSERT_TRUE(trainer->replay(asked, &copy).ran);
  // then
  EXPECT_TRUE(other.ops.empty());
  EXPECT_EQ(willing.ops, asked.ops);
  neg(Tensor::zeros({1}, DType::kF32));
  EXPECT_EQ(other.ops, std::vector<std::string>{"neg"});
}

TEST(ReplayRefusal, random_numbers_from_a_stream_that_the_model_does_not_list_are_not_drawn_twice) {
  struct Noisy : Mlp {
    using Mlp::Mlp;
    RandomStream& noise = register_random(RandomStream(7, 9));
  };
  // given two losses with noise: one draws from a stream of its own, one from a stream of the model
  for (const bool registered : {false, true}) {
    auto make = [&](RandomStream& own) {
      auto mlp = std::make_unique<Noisy>(MlpOptions{.sizes = {64, 10}});
      RandomStream* stream = registered ? &mlp->noise : &own;
      auto optimizer = make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 0.1});
      return std::make_unique<Trainer>(std::move(mlp), std::move(optimizer), digits_train_batches(4, 1, DType::kF32),
                                       [stream](const Tensor& output, const Batch& batch) {
                                         return mul(cross_entropy(output, batch.targets), 1 + stream->uniform());
                                       });
    };
    RandomStream one(7, 9), other(7, 9);
    auto plain = make(one), replayed = make(other);
    replayed->keep_for_replay(true);
    Log log;
    Replayed last;
    replayed->set_boundary_callback([&](Trainer& at) { last = at.replay(log); });
    // when
    for (int i = 0; i < 5; ++i) {
      plain->step();
      replayed->step();
    }
    // then
    EXPECT_EQ(last.ran, registered);
    EXPECT_THAT(last.refused, registered ? HasSubstr("") : HasSubstr("random_streams()"));
    EXPECT_EQ(log.ops.empty(), !registered);
    EXPECT_EQ(everything(*plain), everything(*replayed));
    EXPECT_EQ(one.position(), other.position());
  }
}

TEST(Replaying, gradients_of_parameters_that_the_optimizer_does_not_own_are_left_alone) {
  // given an optimizer of the first layer alone: the others' gradients add up from step to step
  const auto make = [] {
    auto mlp = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 16, 10}});
    std::vector<NamedTensor> owned = mlp->named_parameters();
    owned.resize(2);
    auto optimizer = make_optimizer(owned, {.algorithm = "sgd", .lr = 0.1});
    return std::make_unique<Trainer>(
        std::move(mlp), std::move(optimizer), digits_train_batches(4, 1, DType::kF32),
        [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); });
  };
  auto plain = make(), replayed = make();
  replayed->keep_for_replay(true);
  Log log;
  replayed->set_boundary_callback([&](Trainer& at) { EXPECT_TRUE(at.replay(log).ran); });
  // when
  for (int i = 0; i < 3; ++i) {
    plain->step();
    replayed->step();
  }
  // then
  ASSERT_TRUE(plain->model().named_parameters().back().tensor.grad().defined());
  EXPECT_EQ(everything(*plain), everything(*replayed));
}

TEST(Replaying, an_observer_that_asks_for_a_replay_stays_registered_as_it_was) {
  Log registered, other;
  auto trainer = make_gpt();
  trainer->keep_for_replay(true);
  OptimizerCopy copy;
  trainer->set_boundary_callback([&](Trainer& at) { copy.take(at.optimizer()); });
  trainer->step();
  {
    const HookHandle handle = add_observer(registered);
    ASSERT_TRUE(trainer->replay(registered, &copy).ran);
    const std::size_t told = registered.ops.size();
    // when another asks, it is told nothing; then of ops as before; with its handle gone of nothing more
    ASSERT_TRUE(trainer->replay(other, &copy).ran);
    EXPECT_EQ(registered.ops.size(), told);
    neg(Tensor::zeros({1}, DType::kF32));
    EXPECT_EQ(registered.ops.size(), told + 1);
  }
  neg(Tensor::zeros({1}, DType::kF32));
  EXPECT_EQ(registered.ops.back(), "neg");
  EXPECT_FALSE(has_observers());
}

TEST(Wants, an_observer_without_ops_hears_of_steps_loss_and_gradients_alone) {
  struct Marks : Observer {
    std::vector<TensorRole> kinds;
    int ops = 0, ends = 0;
    bool wants_ops() const noexcept override { return false; }
    void on_op(const OpCall&) noexcept override { ++ops; }
    void on_storage_released(std::uint64_t) noexcept override { ++ops; }
    void on_mark(TensorRole kind, std::string_view, const Tensor&) noexcept override { kinds.push_back(kind); }
    void on_step_end(std::uint32_t, double, double, double, bool) noexcept override { ++ends; }
  } marks;
  auto mlp = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 10}});
  auto optimizer = make_optimizer(mlp->named_parameters(), {.algorithm = "adam"});
  Trainer trainer(std::move(mlp), std::move(optimizer), digits_train_batches(4, 1, DType::kF32),
                  [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); });
  const HookHandle handle = add_observer(marks);
  EXPECT_TRUE(has_observers());
  EXPECT_FALSE(ops_observed());
  trainer.step();
  EXPECT_EQ(marks.ops, 0);
  EXPECT_EQ(marks.ends, 1);
  EXPECT_EQ(marks.kinds, (std::vector<TensorRole>{TensorRole::kBatch, TensorRole::kLabel, TensorRole::kLoss,
                                                TensorRole::kBoundaryGradient, TensorRole::kBoundaryGradient}));
}

}  // namespace
}  // namespace nanhunt::engine::testing
