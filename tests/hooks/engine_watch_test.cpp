// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/bytes_of.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;
using record::testing::ScriptedWriter;
using record::testing::WriterScript;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using testing_support::bytes_of;

class EngineWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(made) << made.status().message();
    recorder = std::move(*made);
  }
  // Ends the recording and keeps its rows.
  void finish() {
    ASSERT_TRUE(recorder->close());
    rows = script->all();
    for (const StringRecord& s : rows.strings) strings[s.id] = s.text;
    for (const ValueRecord& v : rows.values) values[v.id] = v;
  }
  std::string describe(const OpRecord& op) const {
    std::string text = std::string(phase_name(op.phase)) + " " + strings.at(op.module) + " " + strings.at(op.op);
    for (std::uint32_t i = 0; i < op.input_count; ++i) {
      const OpArg& in = rows.inputs[op.first_input + i];
      text += (i == 0 ? "(" : ", ") + strings.at(in.slot) + "=" + std::to_string(in.value);
      if (in.role == ArgRole::kSaved) text += " saved";
      if (in.role == ArgRole::kOverwritten) text += " overwritten";
    }
    text += ") ->";
    for (std::uint32_t i = 0; i < op.output_count; ++i) {
      text += " " + std::to_string(rows.outputs[op.first_output + i].value);
    }
    return text;
  }
  std::vector<std::string> described() const {
    std::vector<std::string> all;
    for (const OpRecord& op : rows.ops) all.push_back(describe(op));
    return all;
  }

  std::shared_ptr<WriterScript> script = std::make_shared<WriterScript>();
  std::unique_ptr<Recorder> recorder;
  RecordBatch rows;
  std::map<StringId, std::string> strings{{0, ""}};
  std::map<ValueId, ValueRecord> values;
};

Tensor vector_of(std::vector<double> numbers, DType dtype = DType::kF32) {
  const auto size = static_cast<std::int64_t>(numbers.size());
  return Tensor::from_values(numbers, {size}, dtype);
}

TEST_F(EngineWatchTest, forward_backward_and_optimizer_are_one_connected_graph) {
  // given
  Tensor w = vector_of({1, 2});
  w.set_requires_grad(true);
  const Tensor x = vector_of({3, 4});
  auto optimizer = engine::make_optimizer({{"w", w}}, {.algorithm = "sgd", .lr = 0.5});
  // when
  {
    EngineWatch watch(*recorder);
    Tensor loss;
    {
      const engine::ScopedModule module("net");
      loss = engine::sum(engine::mul(w, x));
    }
    const engine::ScopedPhase phase(Phase::kBackward);
    loss.backward();
    optimizer->step();
  }
  engine::neg(x);  // no longer watched
  finish();
  // then
  const std::vector<std::string> ops = described();
  ASSERT_EQ(ops.size(), 5u) << ::testing::PrintToString(ops);
  EXPECT_EQ(ops[0], "forward net mul(self=1, other=2) -> 3");
  EXPECT_EQ(ops[1], "forward net sum(self=3) -> 4");
  EXPECT_THAT(ops[2], ::testing::StartsWith("backward net sum_backward("));
  EXPECT_THAT(ops[3], ::testing::StartsWith("backward net mul_backward("));
  EXPECT_THAT(ops[3], ::testing::HasSubstr("other=2 saved"));
  EXPECT_THAT(ops[4], ::testing::StartsWith("optimizer w add_("));
  EXPECT_THAT(ops[4], ::testing::HasSubstr("self=1 overwritten"));
  // The gradient that mul_backward made is what add_ reads.
  const OpRecord& backward = rows.ops[3];
  const OpRecord& update = rows.ops[4];
  std::set<ValueId> read;
  for (std::uint32_t i = 0; i < update.input_count; ++i) read.insert(rows.inputs[update.first_input + i].value);
  EXPECT_TRUE(read.contains(rows.outputs[backward.first_output].value));
  EXPECT_EQ(values[rows.outputs[update.first_output].value].stats.max, 0);  // 2 - 0.5 * 4
  EXPECT_EQ(values[rows.outputs[update.first_output].value].storage, values[1].storage);
  EXPECT_EQ(values[rows.outputs[update.first_output].value].version, values[1].version + 1);
  EXPECT_TRUE(values[1].has_stats);
  EXPECT_EQ(values[1].producer, kNoSeq);
}

TEST_F(EngineWatchTest, an_input_written_over_in_the_meantime_has_no_contents) {
  Tensor a = vector_of({1, 2});
  const Tensor b = vector_of({1, 1});
  {
    EngineWatch watch(*recorder);
    engine::add_(a, b);
  }
  finish();
  ASSERT_EQ(rows.ops.size(), 1u);
  EXPECT_FALSE(values[1].has_stats);
  EXPECT_TRUE(values[3].has_stats);
}

TEST_F(EngineWatchTest, views_stay_connected_to_their_base) {
  {
    EngineWatch watch(*recorder);
    const Tensor a = Tensor::from_values(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3}, DType::kF16);
    engine::exp(engine::select(engine::t(a), 0, 1));
  }
  finish();
  ASSERT_EQ(rows.ops.size(), 3u);
  EXPECT_EQ(values[2].base, 1u);
  EXPECT_EQ(values[3].base, 2u);
  EXPECT_EQ(values[3].stats.min, 2);
  EXPECT_EQ(values[3].stats.max, 5);
  EXPECT_EQ(values[4].base, 0u);
}

TEST_F(EngineWatchTest, freed_storages_end_in_the_trace) {
  std::uint64_t freed = 0;
  const Tensor kept = vector_of({1});
  {
    EngineWatch watch(*recorder);
    {
      const Tensor out = engine::exp(kept);
      freed = out.storage()->generation();
    }
    engine::exp(kept);
  }
  finish();
  std::vector<std::uint64_t> ended;
  for (const EndOfLifeRecord& end : rows.ends_of_life) ended.push_back(end.storage);
  EXPECT_THAT(ended, Contains(freed));
  EXPECT_THAT(ended, Not(Contains(kept.storage()->generation())));
}

std::unique_ptr<engine::Trainer> digits_trainer(DType dtype) {
  engine::MlpOptions model;
  model.sizes = {64, 16, 10};
  model.dtype = dtype;
  auto mlp = std::make_unique<engine::Mlp>(model);
  auto optimizer =
      engine::make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 1e-3, .fp32_masters = true});
  return std::make_unique<engine::Trainer>(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(16, 1, dtype),
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
}

TEST_F(EngineWatchTest, a_watched_training_step_is_recorded_whole) {
  // given
  auto trainer = digits_trainer(DType::kF16);
  // when
  {
    EngineWatch watch(*recorder);
    trainer->step();
    trainer->step();
  }
  finish();
  // then
  ASSERT_EQ(rows.steps.size(), 2u);
  EXPECT_EQ(rows.steps[1].step, 1u);
  EXPECT_EQ(rows.steps[1].end_seq, rows.ops.size());
  ASSERT_EQ(rows.sample_ids.size(), 2u);
  EXPECT_EQ(rows.sample_ids[1].step, 1u);
  EXPECT_EQ(rows.sample_ids[1].sample_ids.size(), 16u);
  std::map<TensorRole, int> marks;
  std::set<std::string> paths;
  for (const MarkRecord& mark : rows.marks) {
    ++marks[mark.kind];
    paths.insert(strings.at(mark.path));
    EXPECT_TRUE(values.contains(mark.value));
  }
  EXPECT_EQ(marks[TensorRole::kLoss], 2);
  EXPECT_EQ(marks[TensorRole::kBoundaryGradient], 8);
  EXPECT_EQ(marks[TensorRole::kParameter], 12);
  EXPECT_EQ(marks[TensorRole::kState], 36);
  EXPECT_EQ(marks[TensorRole::kBatch], 2);
  EXPECT_EQ(marks[TensorRole::kLabel], 2);
  EXPECT_TRUE(paths.contains("fc1.weight.exp_avg_sq"));
  std::set<Phase> phases;
  std::set<std::string> modules;
  for (const OpRecord& op : rows.ops) {
    phases.insert(op.phase);
    modules.insert(strings.at(op.module));
  }
  EXPECT_THAT(phases, ElementsAre(Phase::kForward, Phase::kLoss, Phase::kBackward, Phase::kOptimizer));
  EXPECT_THAT(modules, ::testing::IsSupersetOf({"fc1", "fc2", "<loss>", "fc1.weight"}));
  EXPECT_EQ(recorder->anomalies(), 0u);
}

TEST_F(EngineWatchTest, watching_does_not_change_a_bit) {
  for (DType dtype : {DType::kF32, DType::kF16}) {
    // given
    auto plain = digits_trainer(dtype), watched = digits_trainer(dtype);
    // when
    for (int i = 0; i < 50; ++i) plain->step();
    {
      EngineWatch watch(*recorder);
      for (int i = 0; i < 50; ++i) watched->step();
    }
    // then
    EXPECT_EQ(bytes_of(*plain), bytes_of(*watched)) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace nanhunt::hooks
