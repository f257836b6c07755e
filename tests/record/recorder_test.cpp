// SPDX-License-Identifier: Apache-2.0
#include "src/record/recorder.h"

#include <cfenv>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/record/support.h"

namespace nanhunt::record {
namespace {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

class RecorderTest : public ::testing::Test {
 protected:
  void open(RecorderOptions options) {
    auto made = make_recorder(options, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(made) << made.status().message();
    recorder = std::move(*made);
  }
  void open_dropping(std::size_t queue_bytes) {
    RecorderOptions options;
    options.on_full = OnFull::kDrop;
    options.queue_bytes = queue_bytes;
    options.flush_ms = 1 << 20;
    open(options);
  }
  // One op "exp" from a fresh storage to another; `result` is its output.
  void record_op(double result) {
    const TestTensor in(DType::kF32, {1}, {1}, ++storage), out(DType::kF32, {1}, {result}, ++storage);
    testing::op([&](const OpEvent& e) { recorder->on_op(e); }, "exp", {{"self", in}}, {{"out", out}}, {},
                "layer" + std::to_string(storage % 7));
    recorder->on_storage_released(in.storage());
    recorder->on_storage_released(out.storage());
  }
  // The writer stands in write() with one batch in its hands.
  void block_writer() {
    script->set_blocked(true);
    record_op(1);
    std::thread flusher([&] { EXPECT_TRUE(recorder->flush()); });
    flusher_ = std::move(flusher);
    ASSERT_TRUE(script->wait([&] { return script->waiting == 1; }));
  }
  void unblock_writer() {
    script->set_blocked(false);
    if (flusher_.joinable()) flusher_.join();
  }
  void TearDown() override {
    unblock_writer();
    recorder.reset();
  }

  std::shared_ptr<WriterScript> script = std::make_shared<WriterScript>();
  std::unique_ptr<Recorder> recorder;
  std::uint64_t storage = 0;
  std::thread flusher_;
};

// Every id a row names is defined in the same batch or an earlier one.
void expect_order(const std::vector<RecordBatch>& batches, bool complete) {
  std::set<StringId> strings{0};
  std::set<LayoutId> layouts{0};
  std::set<ValueId> values;
  for (const RecordBatch& b : batches) {
    for (const StringRecord& s : b.strings) EXPECT_TRUE(strings.insert(s.id).second);
    for (const LayoutRecord& l : b.layouts) EXPECT_TRUE(layouts.insert(l.id).second);
    for (const ValueRecord& v : b.values) {
      EXPECT_TRUE(layouts.contains(v.layout));
      EXPECT_TRUE(values.insert(v.id).second);
      EXPECT_TRUE(!complete || v.base == 0 || values.contains(v.base));
    }
    for (const OpRecord& op : b.ops) {
      for (StringId id : {op.op, op.module, op.call_site}) EXPECT_TRUE(strings.contains(id));
      ASSERT_LE(std::size_t{op.first_input} + op.input_count, b.inputs.size());
      ASSERT_LE(std::size_t{op.first_output} + op.output_count, b.outputs.size());
      ASSERT_LE(std::size_t{op.first_scalar} + op.scalar_count, b.scalars.size());
    }
    for (const auto* args : {&b.inputs, &b.outputs}) {
      for (const OpArg& arg : *args) {
        EXPECT_TRUE(values.contains(arg.value));
        EXPECT_TRUE(strings.contains(arg.slot));
      }
    }
    for (const MarkRecord& mark : b.marks) {
      EXPECT_TRUE(values.contains(mark.value));
      EXPECT_TRUE(strings.contains(mark.path));
    }
    for (const EvidenceRecord& e : b.evidence) EXPECT_TRUE(values.contains(e.value));
  }
}

TEST_F(RecorderTest, everything_recorded_arrives_in_order) {
  // given
  open({});
  // when
  for (int i = 0; i < 10000; ++i) record_op(i % 1000 == 999 ? kNan : 1);
  recorder->on_step_end({0, false, 1, 0.1, 1});
  EXPECT_TRUE(recorder->close());
  // then
  const RecordBatch all = script->all();
  ASSERT_EQ(all.ops.size(), 10000u);
  for (std::size_t i = 0; i < all.ops.size(); ++i) ASSERT_EQ(all.ops[i].seq, i);
  EXPECT_EQ(all.values.size(), 20000u);
  EXPECT_EQ(all.ends_of_life.size(), 20000u);
  EXPECT_EQ(all.steps.at(0).end_seq, 10000u);
  EXPECT_TRUE(all.drops.empty());
  EXPECT_GT(script->batches.size(), 3u);
  expect_order(script->batches, true);
  const RecorderCounters counters = recorder->counters();
  EXPECT_EQ(counters.ops, 10000u);
  EXPECT_EQ(counters.values, 20000u);
  EXPECT_EQ(counters.dropped_ops, 0u);
  EXPECT_EQ(recorder->anomalies(), 10u);
  EXPECT_EQ(script->closes, 1);
}

TEST_F(RecorderTest, flush_returns_once_everything_is_written) {
  RecorderOptions options;
  options.flush_ms = 1 << 20;
  open(options);
  record_op(1);
  EXPECT_EQ(script->all().ops.size(), 0u);
  EXPECT_TRUE(recorder->flush());
  EXPECT_EQ(script->all().ops.size(), 1u);
  EXPECT_TRUE(recorder->flush());
}

TEST_F(RecorderTest, the_first_anomaly_is_written_at_once) {
  RecorderOptions options;
  options.flush_ms = 1 << 20;
  open(options);
  record_op(1);
  record_op(kNan);
  EXPECT_TRUE(script->wait([&] { return !script->batches.empty(); }));
  EXPECT_EQ(script->all().ops.size(), 2u);
}

TEST_F(RecorderTest, rows_are_written_in_time_without_further_events) {
  RecorderOptions options;
  options.flush_ms = 20;
  open(options);
  record_op(1);
  EXPECT_TRUE(script->wait([&] { return !script->batches.empty(); }));
}

TEST_F(RecorderTest, close_is_idempotent_and_later_events_are_counted_as_dropped) {
  open({});
  record_op(1);
  EXPECT_TRUE(recorder->close());
  record_op(1);
  recorder->on_step_end({});
  EXPECT_TRUE(recorder->close());
  EXPECT_TRUE(recorder->flush());
  EXPECT_EQ(script->closes, 1);
  EXPECT_EQ(script->all().ops.size(), 1u);
  EXPECT_EQ(recorder->counters().dropped_ops, 1u);
}

TEST_F(RecorderTest, the_destructor_closes) {
  open({});
  record_op(1);
  recorder.reset();
  EXPECT_EQ(script->closes, 1);
  EXPECT_EQ(script->all().ops.size(), 1u);
}

TEST_F(RecorderTest, with_wait_the_run_waits_for_a_slow_writer_and_loses_nothing) {
  // given
  RecorderOptions options;
  options.queue_bytes = 64 << 10;
  options.flush_ms = 1 << 20;
  open(options);
  block_writer();
  std::atomic<int> recorded{0};
  // when
  std::thread run([&] {
    for (int i = 0; i < 5000; ++i) {
      record_op(1);
      ++recorded;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(recorded.load(), 5000);  // 5000 ops take several times the bound
  unblock_writer();
  run.join();
  // then
  EXPECT_TRUE(recorder->close());
  EXPECT_EQ(script->all().ops.size(), 5001u);
  EXPECT_EQ(recorder->counters().dropped_ops, 0u);
  expect_order(script->batches, true);
}

TEST_F(RecorderTest, with_drop_routine_rows_go_and_anomalies_stay) {
  // given
  open_dropping(64 << 10);
  block_writer();
  // when
  for (int i = 0; i < 20000; ++i) record_op(i % 5000 == 77 ? kInf : 1);
  // then the run never waited; now the writer goes on
  unblock_writer();
  EXPECT_TRUE(recorder->close());
  const RecordBatch all = script->all();
  const RecorderCounters counters = recorder->counters();
  EXPECT_GT(counters.dropped_ops, 10000u);
  EXPECT_EQ(all.ops.size() + counters.dropped_ops, 20001u);
  EXPECT_EQ(all.values.size() + counters.dropped_values, 40002u);
  std::uint64_t reported_ops = 0, reported_values = 0;
  for (const DropRecord& drop : all.drops) {
    reported_ops += drop.ops;
    reported_values += drop.values;
  }
  EXPECT_EQ(reported_ops, counters.dropped_ops);
  EXPECT_EQ(reported_values, counters.dropped_values);
  int anomalies = 0;
  for (const ValueRecord& v : all.values) anomalies += v.stats.pos_inf > 0 ? 1 : 0;
  EXPECT_EQ(anomalies, 4);
  EXPECT_EQ(all.evidence.size(), 4u);
  expect_order(script->batches, false);
}

TEST_F(RecorderTest, with_drop_a_living_value_is_written_again_for_a_later_anomaly) {
  // given a parameter whose row is dropped
  open_dropping(16 << 10);
  block_writer();
  const TestTensor parameter(DType::kF32, {1}, {-4}, 1000001);
  recorder->on_mark({0, 0, TensorRole::kParameter, "fc1.weight", parameter.value()});
  for (int i = 0; i < 5000; ++i) record_op(1);
  // when
  const TestTensor bad(DType::kF32, {1}, {kNan}, 1000002);
  testing::op([&](const OpEvent& e) { recorder->on_op(e); }, "sqrt", {{"self", parameter}}, {{"out", bad}});
  unblock_writer();
  EXPECT_TRUE(recorder->close());
  // then
  int rows = 0;
  for (const ValueRecord& v : script->all().values) rows += v.storage == 1000001 ? 1 : 0;
  EXPECT_EQ(rows, 1);
  expect_order(script->batches, false);
}

TEST_F(RecorderTest, a_failing_writer_never_stops_the_run) {
  // given a disk that is full for a while, and a small queue that waits
  RecorderOptions options;
  options.queue_bytes = 16 << 10;
  options.flush_ms = 1 << 20;
  open(options);
  script->set_failing(true);
  // when
  for (int i = 0; i < 5000; ++i) record_op(1);
  const Status during = recorder->flush();
  script->set_failing(false);
  for (int i = 0; i < 100; ++i) record_op(2);
  const Status end = recorder->close();
  // then
  EXPECT_EQ(during.code(), StatusCode::kWriteFailed);
  EXPECT_EQ(end.code(), StatusCode::kWriteFailed);
  EXPECT_THAT(end.message(), ::testing::HasSubstr("no space left on device"));
  const RecorderCounters counters = recorder->counters();
  EXPECT_GT(counters.write_errors, 0u);
  EXPECT_EQ(counters.first_write_error, "no space left on device");
  EXPECT_EQ(counters.dropped_ops, 5000u);
  const RecordBatch all = script->all();
  EXPECT_EQ(all.ops.size(), 100u);
  ASSERT_EQ(all.drops.size(), 1u);
  EXPECT_EQ(all.drops[0].ops, 5000u);
  expect_order(script->batches, true);  // names first used in lost batches are there
}

TEST_F(RecorderTest, a_throwing_writer_is_a_failing_writer) {
  open({});
  script->throwing = true;
  record_op(1);
  EXPECT_EQ(recorder->close().code(), StatusCode::kWriteFailed);
  EXPECT_EQ(recorder->counters().dropped_ops, 1u);
}

TEST_F(RecorderTest, the_floating_point_environment_of_the_run_is_untouched) {
  open({});
  std::feclearexcept(FE_ALL_EXCEPT);
  std::feraiseexcept(FE_UNDERFLOW);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  // when statistics meet NaN, overflow and inexact sums
  const TestTensor bad(DType::kF64, {4}, {kNan, kInf, 1e308, 1e308}, 900001);
  recorder->on_mark({0, 0, TensorRole::kLoss, "loss", bad.value()});
  record_op(0.1);
  record_op(kNan);
  // then
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), FE_UNDERFLOW);
  std::fesetround(FE_TONEAREST);
  std::feclearexcept(FE_ALL_EXCEPT);
}

TEST_F(RecorderTest, counters_may_be_read_from_another_thread) {
  open({});
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      (void)recorder->counters();
      (void)recorder->anomalies();
    }
  });
  for (int i = 0; i < 3000; ++i) record_op(i % 100 == 0 ? kNan : 1);
  done = true;
  reader.join();
  EXPECT_EQ(recorder->counters().ops, 3000u);
}

}  // namespace
}  // namespace nanhunt::record
