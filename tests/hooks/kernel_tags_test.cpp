// SPDX-License-Identifier: Apache-2.0
// Which launches belong to which op of the engine, told to a source of kernels that plays a GPU: a launch is a call of
// `launch`, and its kernel is the op's whose number its ticket is given in the end.
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/kernel_tags.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;
using record::testing::ScriptedWriter;
using record::testing::WriterScript;
using ::testing::SizeIs;

constexpr std::uint64_t kOwn = ~std::uint64_t{0};

class PlayedSource final : public record::KernelSource {
 public:
  std::uint64_t push_op() noexcept override {
    stack.push_back(++last_ticket);
    return last_ticket;
  }
  void pop_op(std::uint64_t ticket, std::uint64_t seq, std::uint32_t step) noexcept override {
    mistakes += stack.empty() || stack.back() != ticket;
    if (!stack.empty()) stack.pop_back();
    mistakes += !ops.try_emplace(ticket, std::pair(seq, step)).second;
  }
  void push_own() noexcept override { stack.push_back(kOwn); }
  void pop_own() noexcept override {
    mistakes += stack.empty() || stack.back() != kOwn;
    if (!stack.empty()) stack.pop_back();
  }
  void set_place(std::uint32_t step, Phase) noexcept override { place = step; }
  void drain(Recorder& recorder) noexcept override {
    ++drains;
    recorder.on_kernel({0, place, "played", false, 1, 1, 7});
  }
  void finish(Recorder&) noexcept override {}

  void launch(const std::string& name) { launched.emplace_back(name, stack.empty() ? 0 : stack.back()); }
  std::uint64_t seq_of(const std::string& name) const {
    for (const auto& [what, ticket] : launched) {
      if (what == name) return ticket == kOwn ? kOwn : ops.at(ticket).first;
    }
    return kNoSeq;
  }

  std::vector<std::uint64_t> stack;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> ops;  // by ticket
  std::vector<std::pair<std::string, std::uint64_t>> launched;
  std::uint64_t last_ticket = 0;
  std::uint32_t place = 0;
  int mistakes = 0, drains = 0;
};

struct Trained {
  RecordBatch rows;
  std::map<StringId, std::string> strings{{0, ""}};
  std::vector<float> weights;
  std::string op(std::uint64_t seq) const {
    for (const OpRecord& op : rows.ops) {
      if (op.seq == seq) return strings.at(op.op);
    }
    return "none";
  }
};

Trained train(PlayedSource* source, std::uint32_t steps = 3) {
  auto script = std::make_shared<WriterScript>();
  auto made = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const std::unique_ptr<Recorder> recorder = std::move(made).value();
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 16, 10}});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 1e-3});
  engine::Trainer trainer(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(16, 1, DType::kF32),
      [&](const Tensor& output, const engine::Batch& batch) {
        const Tensor loss = engine::cross_entropy(output, batch.targets);
        if (source != nullptr) source->launch("of mul");
        return engine::mul(loss, 2.0);
      });
  {
    TrainerWatch watch(trainer, *recorder, {.kernels = source});
    for (std::uint32_t step = 0; step < steps; ++step) trainer.step();
  }
  EXPECT_TRUE(recorder->close());
  Trained run;
  run.rows = script->all();
  for (const StringRecord& s : run.rows.strings) run.strings[s.id] = s.text;
  for (const auto& [path, tensor] : trainer.model().named_parameters()) {
    const auto* numbers = reinterpret_cast<const float*>(tensor.storage()->data());
    run.weights.insert(run.weights.end(), numbers, numbers + tensor.storage()->bytes() / sizeof(float));
  }
  return run;
}

TEST(KernelTags, every_op_has_the_launches_since_the_op_before_it) {
  PlayedSource source;
  const Trained run = train(&source);
  EXPECT_EQ(source.mistakes, 0);
  EXPECT_THAT(source.stack, SizeIs(0));
  // each recorded op is bound once, in its step
  std::map<std::uint64_t, std::uint32_t> bound;
  for (const auto& [ticket, op] : source.ops) {
    if (op.first == kNoSeq) continue;
    EXPECT_TRUE(bound.try_emplace(op.first, op.second).second);
  }
  ASSERT_EQ(bound.size(), run.rows.ops.size());
  for (const OpRecord& op : run.rows.ops) EXPECT_EQ(bound.at(op.seq), op.step);
  EXPECT_EQ(run.op(source.seq_of("of mul")), "mul");
}

TEST(KernelTags, kernels_are_asked_for_once_a_step_and_recorded) {
  PlayedSource source;
  const Trained run = train(&source);
  EXPECT_EQ(source.drains, 3);
  ASSERT_THAT(run.rows.kernels, SizeIs(3));
  EXPECT_EQ(run.strings.at(run.rows.kernels[0].name), "played");
}

TEST(KernelTags, what_observers_launch_is_nanhunts_own) {
  // given an observer that launches while it is told, as a recorder does that reads on the device
  PlayedSource source;
  class Launches final : public engine::Observer {
   public:
    explicit Launches(PlayedSource& to) : to_(to) {}
    void on_op(const engine::OpCall&) noexcept override { to_.launch("own"); }
    void on_mark(TensorRole, std::string_view, const Tensor&) noexcept override { to_.launch("own"); }
    void on_step_end(std::uint32_t, double, double, double, bool) noexcept override { to_.launch("own"); }

   private:
    PlayedSource& to_;
  } launches(source);
  auto script = std::make_shared<WriterScript>();
  auto made = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const std::unique_ptr<Recorder> recorder = std::move(made).value();
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 10}});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 0.1});
  engine::Trainer trainer(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(16, 1, DType::kF32),
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
  // when it stands where the watch's own observers stand
  KernelTags tags(*recorder, source);
  tags.observe_first();
  const engine::HookHandle between = engine::add_observer(launches);
  tags.observe_last();
  trainer.step();
  // then
  ASSERT_GT(source.launched.size(), 5u);
  for (const auto& [name, ticket] : source.launched) EXPECT_EQ(ticket, kOwn);
  EXPECT_EQ(source.mistakes, 0);
}

TEST(KernelTags, change_nothing_of_a_run) {
  PlayedSource source;
  const Trained tagged = train(&source), plain = train(nullptr);
  EXPECT_EQ(tagged.weights, plain.weights);
  EXPECT_EQ(tagged.rows.ops, plain.rows.ops);
}

}  // namespace
}  // namespace nanhunt::hooks
