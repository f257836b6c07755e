// SPDX-License-Identifier: Apache-2.0
// Steps of which nobody knows yet whether their ops are wanted: held, then kept or dropped.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>

#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/eventually.h"

namespace nanhunt::record {
namespace {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

class HoldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.flush_ms = 1;  // whatever may be handed over is, at once
    open();
  }
  void open() {
    recorder.reset();
    auto made = make_recorder(options, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(made) << made.status().message();
    recorder = std::move(*made);
  }
  void hold(HoldAction action) { dynamic_cast<NumberingRecorder&>(*recorder).on_hold(action); }
  void op(const TestTensor& in, const TestTensor& out, std::string_view name = "exp") {
    testing::op([&](const OpEvent& e) { recorder->on_op(e); }, name, {{"self", in}}, {{"out", out}});
  }
  void end_step(std::uint32_t step) { recorder->on_step_end({step, false, 1, 0.1, 1}); }
  RecordBatch recorded() {
    EXPECT_TRUE(recorder->close());
    return script->all();
  }
  // Every value that a row names has a row.
  static void expect_whole(const RecordBatch& all) {
    std::set<ValueId> values;
    for (const ValueRecord& v : all.values) values.insert(v.id);
    for (const auto* args : {&all.inputs, &all.outputs})
      for (const OpArg& arg : *args) EXPECT_TRUE(values.contains(arg.value));
    for (const MarkRecord& m : all.marks) EXPECT_TRUE(values.contains(m.value));
    for (const ValueRecord& v : all.values) EXPECT_TRUE(v.base == 0 || values.contains(v.base));
  }

  RecorderOptions options;
  std::shared_ptr<WriterScript> script = std::make_shared<WriterScript>();
  std::unique_ptr<Recorder> recorder;
  TestTensor weight{DType::kF32, {2}, {1, 2}, 1};
};

TEST_F(HoldTest, a_dropped_step_leaves_how_it_went_and_none_of_its_ops) {
  // Given a step before, a step that is held, and a step after,
  const TestTensor a(DType::kF32, {2}, {1, 1}, 2), b(DType::kF32, {2}, {1, 1}, 3), c(DType::kF32, {2}, {1, 1}, 4);
  op(weight, a);
  end_step(0);
  hold(HoldAction::kHold);
  op(a, b);
  op(a, TestTensor(DType::kF32, {2}, {INFINITY, 1}, 5));
  recorder->on_mark({1, 0, TensorRole::kLoss, "loss", b.value()});
  recorder->on_storage_released(b.storage());
  recorder->on_health({1, 0, 0, "", 1, 1});
  // when it is dropped,
  hold(HoldAction::kDrop);
  end_step(1);
  op(weight, c);
  end_step(2);
  // then the others are there whole, as if it had run no op, and of it only what says how it went.
  const RecordBatch all = recorded();
  ASSERT_EQ(all.ops.size(), 2u);
  EXPECT_EQ(all.ops[0].seq, 0u);
  EXPECT_EQ(all.ops[1].seq, 1u);
  ASSERT_EQ(all.steps.size(), 3u);
  EXPECT_EQ(all.steps[1].end_seq, 1u);
  ASSERT_EQ(all.health.size(), 1u);
  EXPECT_EQ(all.health[0].seq, 1u);
  EXPECT_EQ(dynamic_cast<NumberingRecorder&>(*recorder).bad_since(0), 0u);
  EXPECT_TRUE(all.marks.empty());
  EXPECT_TRUE(all.ends_of_life.empty());
  EXPECT_TRUE(all.drops.empty());
  EXPECT_EQ(recorder->counters().dropped_ops, 0u);
  expect_whole(all);
}

TEST_F(HoldTest, a_value_of_a_dropped_step_is_written_again_for_who_names_it_later) {
  // Given a weight that was first seen in a step that is dropped,
  const TestTensor a(DType::kF32, {2}, {1, 1}, 2), b(DType::kF32, {2}, {INFINITY, 1}, 3);
  hold(HoldAction::kHold);
  op(weight, a);
  hold(HoldAction::kDrop);
  end_step(0);
  // when a step that is kept reads it, and a view of what the dropped step made,
  hold(HoldAction::kHold);
  op(weight, b);
  op(a.view({1}, {1}, 1), TestTensor(DType::kF32, {1}, {1}, 4));
  hold(HoldAction::kKeep);
  end_step(1);
  // then its row is in the trace, with the statistics of then, and made by no op that is not.
  const RecordBatch all = recorded();
  ASSERT_EQ(all.ops.size(), 2u);
  expect_whole(all);
  ASSERT_FALSE(all.values.empty());
  EXPECT_EQ(all.values[0].storage, weight.storage());
  EXPECT_EQ(all.values[0].stats.max, 2);
  EXPECT_FALSE(all.evidence.empty());
  for (const ValueRecord& v : all.values) EXPECT_TRUE(v.producer == kNoSeq || v.producer < 2) << v.producer;
}

TEST_F(HoldTest, a_kept_step_is_recorded_as_if_it_had_not_been_held) {
  const auto record = [&](bool held) {
    script = std::make_shared<WriterScript>();
    open();
    for (std::uint32_t step = 0; step < 3; ++step) {
      if (held) hold(HoldAction::kHold);
      const TestTensor a(DType::kF16, {2}, {1, 1}, 10 + step), b(DType::kF16, {2}, {step == 1 ? INFINITY : 1, 1}, 20 + step);
      op(weight, a);
      op(a, b);
      recorder->on_storage_released(a.storage());
      if (held) hold(HoldAction::kKeep);
      end_step(step);
    }
    return recorded();
  };
  const RecordBatch plain = record(false), held = record(true);
  EXPECT_EQ(plain.ops, held.ops);
  EXPECT_EQ(plain.values, held.values);
  EXPECT_EQ(plain.inputs, held.inputs);
  EXPECT_EQ(plain.evidence, held.evidence);
  EXPECT_EQ(plain.ends_of_life, held.ends_of_life);
}

TEST_F(HoldTest, what_is_said_of_ops_between_two_holds_stays) {
  hold(HoldAction::kHold);
  op(weight, TestTensor(DType::kF32, {2}, {1, NAN}, 2));
  hold(HoldAction::kKeep);
  ProbeEvent probe;
  probe.seq = 0;
  recorder->on_probe(probe);
  recorder->on_capture({0, 0, "op-0.safetensors", 10});
  hold(HoldAction::kHold);
  op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 3));
  hold(HoldAction::kDrop);
  const RecordBatch all = recorded();
  EXPECT_EQ(all.probes.size(), 1u);
  EXPECT_EQ(all.captures.size(), 1u);
}

TEST_F(HoldTest, nothing_is_written_while_it_is_not_known_and_a_flush_keeps_it) {
  hold(HoldAction::kHold);
  op(weight, TestTensor(DType::kF32, {2}, {1, INFINITY}, 2));  // the first anomaly, which is else written at once
  EXPECT_TRUE(script->all().ops.empty());
  EXPECT_TRUE(recorder->flush());
  EXPECT_EQ(script->all().ops.size(), 1u);
  hold(HoldAction::kDrop);
  EXPECT_EQ(recorded().ops.size(), 1u);
}

TEST_F(HoldTest, a_held_step_that_makes_a_nan_is_written_though_nobody_ends_it) {
  // Given a step that goes on once it is bad,
  hold(HoldAction::kHold);
  op(weight, TestTensor(DType::kF32, {2}, {1, NAN}, 2));
  // then its rows reach the writer, so that a kill does not lose them,
  EXPECT_TRUE(testing_support::eventually([&] { return script->all().ops.size() == 1; }));
  // and what follows stays with them, though it is called unwanted.
  op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 3));
  hold(HoldAction::kDrop);
  const RecordBatch all = recorded();
  ASSERT_EQ(all.ops.size(), 2u);
  expect_whole(all);
}

TEST_F(HoldTest, what_dropped_steps_have_used_of_a_runs_limits_is_given_back) {
  // Given room for the evidence of one origin,
  options.max_evidence = 1;
  options.max_histograms = 2;
  open();
  for (std::uint32_t step = 0; step < 10; ++step) {
    hold(HoldAction::kHold);
    op(weight, TestTensor(DType::kF32, {2}, {INFINITY, 1}, 2 + step), "log");  // meant so: a mask
    hold(step == 9 ? HoldAction::kKeep : HoldAction::kDrop);
    end_step(step);
  }
  // when the tenth step is the one that is wanted, then it has its evidence.
  const RecordBatch all = recorded();
  EXPECT_EQ(all.evidence.size(), 1u);
  EXPECT_EQ(all.histograms.size(), 2u);
}

TEST_F(HoldTest, past_its_bound_the_routine_of_a_step_goes_and_is_counted_and_the_bad_stays) {
  options.held_bytes = 64u << 10;
  open();
  hold(HoldAction::kHold);
  for (std::uint64_t i = 0; i < 10000; ++i)
    op(weight, TestTensor(DType::kF32, {2}, {i == 5000 ? NAN : 1, 1}, 2 + i));
  hold(HoldAction::kKeep);
  end_step(0);
  const RecordBatch all = recorded();
  EXPECT_GT(recorder->counters().dropped_ops, 5000u);
  EXPECT_EQ(all.ops.size() + recorder->counters().dropped_ops, 10000u);
  bool bad = false;
  for (const OpRecord& op : all.ops) bad = bad || op.seq == 5000;
  EXPECT_TRUE(bad);
  expect_whole(all);
}

TEST_F(HoldTest, a_step_of_which_some_was_written_goes_on_from_there_when_the_rest_is_dropped) {
  hold(HoldAction::kHold);
  op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 2));
  EXPECT_TRUE(recorder->flush());
  op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 3));
  hold(HoldAction::kDrop);
  op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 4));
  const RecordBatch all = recorded();
  ASSERT_EQ(all.ops.size(), 2u);
  EXPECT_EQ(all.ops[1].seq, 1u);
  expect_whole(all);
}

TEST_F(HoldTest, nothing_is_told_as_lost_of_a_step_that_nobody_wanted) {
  options.held_bytes = 64u << 10;
  open();
  hold(HoldAction::kHold);
  for (std::uint64_t i = 0; i < 10000; ++i) op(weight, TestTensor(DType::kF32, {2}, {1, 1}, 2 + i));
  hold(HoldAction::kDrop);
  end_step(0);
  const RecordBatch all = recorded();
  EXPECT_EQ(recorder->counters().dropped_ops, 0u);
  EXPECT_TRUE(all.drops.empty());
  EXPECT_TRUE(all.ops.empty());
}

}  // namespace
}  // namespace nanhunt::record
