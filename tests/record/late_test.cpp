// SPDX-License-Identifier: Apache-2.0
// Statistics that come later than the rows that show them: from a device, by a source that the tests play.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nanhunt/recorder.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::record {
namespace {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Contents that the host cannot read, and what a device would say of them.
struct Late {
  const TestTensor& tensor;
  std::uint64_t number;
  ValueView value() const {
    ValueView view = tensor.value();
    view.tensor.data = nullptr;
    view.late = number;
    return view;
  }
  TensorStats stats() const { return compute_stats(tensor.tensor(), StatsLevel::kSums); }
};

struct LateRun {
  explicit LateRun(RecorderOptions options = {}) : script(std::make_shared<WriterScript>()) {
    options.flush_ms = 10'000;  // only what is asked for is handed over
    auto made = make_recorder(options, std::make_unique<ScriptedWriter>(script));
    recorder = std::move(*made);
  }
  void op(std::string_view name, std::vector<OpInput> inputs, std::vector<OpOutput> outputs,
          std::vector<OpScalar> scalars = {}, std::uint64_t late = 0, Phase phase = Phase::kForward) {
    OpEvent event;
    event.phase = phase;
    event.op = name;
    event.module = "fc1";
    event.inputs = inputs;
    event.outputs = outputs;
    event.scalars = scalars;
    event.late = late;
    recorder->on_op(event);
  }
  void end_step() { recorder->on_step_end({.step = step++}); }
  RecordBatch written() {
    EXPECT_TRUE(recorder->flush());
    return script->all();
  }
  RecordBatch closed() {
    EXPECT_TRUE(recorder->close());
    return script->all();
  }
  std::map<std::string, std::uint64_t> notes() {
    const RecordBatch rows = script->all();
    std::map<StringId, std::string> strings;
    for (const StringRecord& s : rows.strings) strings[s.id] = s.text;
    std::map<std::string, std::uint64_t> out;
    for (const NoteRecord& note : rows.notes) out[strings[note.text]] = note.count;
    return out;
  }
  std::shared_ptr<WriterScript> script;
  std::unique_ptr<Recorder> recorder;
  std::uint32_t step = 0;
};

// A trace in which every row names only values, strings and layouts that came before it, batch by batch.
void expect_order(const std::vector<RecordBatch>& batches) {
  std::set<ValueId> values;
  for (const RecordBatch& b : batches) {
    for (const ValueRecord& v : b.values) {
      EXPECT_TRUE(v.base == 0 || values.contains(v.base)) << v.id;
      values.insert(v.id);
    }
    for (const OpArg& arg : b.inputs) EXPECT_TRUE(values.contains(arg.value)) << arg.value;
    for (const OpArg& arg : b.outputs) EXPECT_TRUE(values.contains(arg.value)) << arg.value;
    for (const MarkRecord& mark : b.marks) EXPECT_TRUE(values.contains(mark.value)) << mark.value;
    for (const EvidenceRecord& e : b.evidence) EXPECT_TRUE(values.contains(e.value)) << e.value;
  }
}

constexpr std::string_view kLostNote = "not taken on a device: statistics that were lost or came too late";

TEST(LateStats, an_op_whose_outputs_are_read_in_both_ways_has_its_evidence_once) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), here(DType::kF32, {2}, {1, kInf}, 2), there(DType::kF32, {2}, {3, 4}, 3);
  LateRun run;
  const Late out{there, 7};
  run.op("frexp", {{"self", x.value()}}, {{"mantissa", here.value()}, {"exponent", out.value()}});
  run.recorder->on_late_stats(7, out.stats());
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.evidence.size(), 1U);
  EXPECT_EQ(rows.evidence[0].flat_index, 1);
}

TEST(LateStats, rows_wait_and_are_then_as_if_the_host_had_read_them) {
  const TestTensor x(DType::kF32, {4}, {1, 2, 0, 4}, 1), y(DType::kF32, {4}, {1, kInf, 0, 8}, 2);
  LateRun host;
  host.op("mul", {{"self", x.value()}}, {{"out", y.value()}}, {{"other", 2}});
  LateRun late;
  const Late in{x, 1}, out{y, 2};
  late.op("mul", {{"self", in.value()}}, {{"out", out.value()}}, {{"other", 2}}, 3);
  EXPECT_TRUE(late.written().values.empty());
  EXPECT_EQ(late.recorder->anomalies(), 0U);

  late.recorder->on_late_stats(1, in.stats());
  late.recorder->on_late_stats(2, out.stats());
  EXPECT_TRUE(late.written().ops.empty()) << "its findings are still to come";
  const LateOperand operand{0, 1, 2};
  const LateElement element{0, false, 1, kInf, {&operand, 1}};
  late.recorder->on_late_findings(3, {.elements = {&element, 1}});

  const RecordBatch expected = host.written(), got = late.written();
  EXPECT_EQ(got.values, expected.values);
  EXPECT_EQ(got.ops, expected.ops);
  EXPECT_EQ(got.inputs, expected.inputs);
  EXPECT_EQ(got.outputs, expected.outputs);
  EXPECT_EQ(got.evidence, expected.evidence);
  EXPECT_EQ(got.evidence.size(), 1U);
  EXPECT_EQ(late.recorder->anomalies(), 1U);
  EXPECT_EQ(late.recorder->counters().late_values, 3U);
  EXPECT_EQ(late.recorder->counters().late_lost, 0U);
}

TEST(LateStats, numbers_that_come_out_of_order_leave_rows_in_order) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2), z(DType::kF32, {2}, {5, kNan}, 3);
  LateRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.op("log", {{"self", Late{y, 9}.value()}}, {{"out", Late{z, 3}.value()}});
  run.recorder->on_late_stats(3, Late{z, 3}.stats());
  run.recorder->on_late_stats(9, Late{y, 9}.stats());  // the recorder knows y already: nothing waits for this one
  EXPECT_TRUE(run.written().ops.empty());
  run.recorder->on_late_stats(1, Late{x, 1}.stats());
  EXPECT_TRUE(run.written().ops.empty());
  run.recorder->on_late_stats(2, Late{y, 2}.stats());
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.ops.size(), 2U);
  EXPECT_LT(rows.ops[0].seq, rows.ops[1].seq);
  ASSERT_EQ(rows.values.size(), 3U);
  EXPECT_EQ(rows.values[1].stats, Late({y, 2}).stats());
  EXPECT_EQ(run.recorder->anomalies(), 1U);
  expect_order(run.script->batches);
}

TEST(LateStats, what_is_lost_is_written_as_unknown_and_told) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, kInf}, 2);
  LateRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.recorder->on_late_stats(1, Late{x, 1}.stats());
  run.recorder->on_late_lost(2);
  run.end_step();
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  EXPECT_TRUE(rows.values[0].has_stats);
  EXPECT_FALSE(rows.values[1].has_stats);
  EXPECT_EQ(rows.ops.size(), 1U);
  EXPECT_EQ(run.recorder->counters().late_lost, 1U);
  EXPECT_EQ(run.notes()[std::string(kLostNote)], 1U);
}

TEST(LateStats, what_does_not_come_in_so_many_steps_is_given_up) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2);
  LateRun run({.late_steps = 3});
  run.op("relu", {{"self", x.value()}}, {{"out", Late{y, 1}.value()}});
  for (int i = 0; i < 3; ++i) run.end_step();
  EXPECT_TRUE(run.written().ops.empty());
  run.end_step();
  RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  EXPECT_FALSE(rows.values[1].has_stats);
  EXPECT_EQ(run.recorder->counters().late_lost, 1U);
  run.recorder->on_late_stats(1, Late{y, 1}.stats());  // too late
  EXPECT_EQ(run.closed().values, rows.values);
  EXPECT_EQ(run.recorder->counters().late_lost, 1U);
}

TEST(LateStats, what_is_out_when_it_closes_is_given_up) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2);
  for (const OnFull on_full : {OnFull::kWait, OnFull::kDrop}) {
    LateRun run({.on_full = on_full});
    run.op("relu", {{"self", x.value()}}, {{"out", Late{y, 1}.value()}}, {}, 2);
    run.recorder->on_mark({0, 0, MarkKind::kLoss, "loss", Late{y, 3}.value()});
    const RecordBatch rows = run.closed();
    EXPECT_EQ(rows.ops.size(), 1U);
    EXPECT_EQ(rows.marks.size(), 1U);
    ASSERT_EQ(rows.values.size(), 2U);
    EXPECT_FALSE(rows.values[1].has_stats);
    EXPECT_EQ(run.recorder->counters().late_lost, 2U);
    EXPECT_EQ(run.notes()[std::string(kLostNote)], 2U);
    run.recorder->on_late_stats(1, Late{y, 1}.stats());
    EXPECT_EQ(run.recorder->counters().dropped_other, 0U);
  }
}

TEST(LateStats, a_view_of_the_same_elements_takes_its_bases) {
  const TestTensor x(DType::kF32, {2, 3}, {1, kNan, 3, 4, 5, kInf}, 1);
  const TestTensor flat = x.view({6}, {1}), turned = x.t();
  LateRun run;
  ValueView as_flat = Late{flat, 0}.value(), as_turned = Late{turned, 0}.value();
  EXPECT_TRUE(run.recorder->wants_stats(Late{x, 1}.value()));
  run.op("relu", {}, {{"out", Late{x, 1}.value()}});
  EXPECT_FALSE(run.recorder->wants_stats(Late{x, 1}.value()));
  EXPECT_FALSE(run.recorder->wants_stats(as_flat));
  EXPECT_TRUE(run.recorder->wants_stats(as_turned)) << "its first bad element is another";
  as_flat.late = kLateAsKnown;
  run.op("view", {{"self", Late{x, 1}.value()}}, {{"out", as_flat}});
  run.recorder->on_late_stats(1, Late{x, 1}.stats());
  run.op("view", {{"self", Late{x, 1}.value()}}, {{"out", as_flat}});  // known by now
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 3U);
  for (const ValueRecord& v : rows.values) EXPECT_EQ(v.stats, rows.values[0].stats);
  EXPECT_EQ(rows.values[0].stats.first_nonfinite, 1);
  EXPECT_EQ(rows.values[1].base, rows.values[0].id);
  EXPECT_EQ(run.recorder->anomalies(), 3U);
}

TEST(LateStats, statistics_that_do_not_fit_the_value_are_not_believed) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), more(DType::kF32, {3}, {1, 2, 3}, 2);
  LateRun run;
  run.op("relu", {}, {{"out", Late{x, 1}.value()}});
  run.op("relu", {}, {{"out", Late{more, 2}.value()}});
  run.recorder->on_late_stats(1, Late{more, 2}.stats());
  run.recorder->on_late_stats(2, compute_stats(more.tensor(), StatsLevel::kFinite));
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  for (const ValueRecord& v : rows.values) EXPECT_FALSE(v.has_stats);
  EXPECT_EQ(run.recorder->counters().late_lost, 2U);
}

TEST(LateStats, zero_counts_settle_flushed_when_they_come) {
  const TestTensor x(DType::kF16, {4}, {1e-4, 2, 0, 4}, 1), y(DType::kF16, {4}, {0, 2e-5, 0, 4e-5}, 2);
  const TestTensor z(DType::kF16, {4}, {0, 0, 0, 0}, 3), w(DType::kF16, {4}, {1, 0, 1, 1}, 4);
  LateRun run;
  run.op("mul", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}}, {{"other", 1e-5}});
  // Two factors with zeros: only their elements say which zero excuses which.
  run.op("mul", {{"self", Late{y, 0}.value()}, {"other", Late{w, 3}.value()}}, {{"out", Late{z, 4}.value()}}, {}, 5);
  const TestTensor z2(DType::kF16, {4}, {0, 0, 0, 0}, 5);
  run.op("mul", {{"self", Late{y, 0}.value()}, {"other", Late{w, 0}.value()}}, {{"out", Late{z2, 6}.value()}});
  for (const Late& late : {Late{x, 1}, Late{y, 2}, Late{w, 3}, Late{z, 4}, Late{z2, 6}}) {
    run.recorder->on_late_stats(late.number, late.stats());
  }
  run.recorder->on_late_findings(5, {.flushed = 1});
  run.end_step();
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 5U);
  EXPECT_EQ(rows.values[1].flushed, 1);
  EXPECT_EQ(rows.values[3].flushed, 1);
  EXPECT_EQ(rows.values[4].flushed, -1);
  EXPECT_EQ(run.notes()["not taken on a device: how many values were lost to zero"], 1U);
}

TEST(LateStats, births_without_elements_are_told) {
  const TestTensor x(DType::kF32, {2}, {0, 2}, 1), y(DType::kF32, {2}, {kInf, 0.5}, 2);
  LateRun run;
  run.op("reciprocal", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.recorder->on_late_stats(1, Late{x, 1}.stats());
  run.recorder->on_late_stats(2, Late{y, 2}.stats());
  run.end_step();
  const RecordBatch rows = run.written();
  EXPECT_TRUE(rows.evidence.empty());
  EXPECT_EQ(run.notes()["not taken on a device: first bad elements and what they were made from"], 1U);
  EXPECT_EQ(run.notes()["not taken on a device: histograms of ops where bad numbers were born"], 1U);
}

TEST(LateStats, badness_that_was_carried_on_is_no_birth) {
  const TestTensor x(DType::kF32, {2}, {kInf, 2}, 1), y(DType::kF32, {2}, {kInf, 0.5}, 2);
  LateRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.recorder->on_late_stats(2, Late{y, 2}.stats());
  run.recorder->on_late_stats(1, Late{x, 1}.stats());
  run.end_step();
  run.closed();
  EXPECT_TRUE(run.notes().empty());
  EXPECT_EQ(run.recorder->anomalies(), 1U);
}

TEST(LateStats, lost_updates_stand_among_the_scalars_or_are_told_as_not_taken) {
  TestTensor weight(DType::kF16, {2}, {1, 1}, 1);
  const TestTensor change(DType::kF16, {2}, {1e-5, 0.5}, 2);
  weight.write({1, 1.5});
  const TestTensor old = weight.old_version();
  const auto add = [&](LateRun& run) {
    run.op("add_", {{"self", old.value(), ArgRole::kOverwritten}, {"other", Late{change, 1}.value()}},
           {{"out", Late{weight, 2}.value()}}, {{"alpha", 1}}, 3, Phase::kOptimizer);
    run.recorder->on_late_stats(1, Late{change, 1}.stats());
    run.recorder->on_late_stats(2, Late{weight, 2}.stats());
  };
  LateRun taken;
  add(taken);
  taken.recorder->on_late_findings(3, {.updates = 2, .lost_updates = 1, .lost_update_share = 0.25});
  const RecordBatch rows = taken.written();
  ASSERT_EQ(rows.ops[0].scalar_count, 4U);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 1].value, 2);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 2].value, 1);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 3].value, 0.25);

  LateRun missing;
  add(missing);
  missing.recorder->on_late_findings(3, {});
  missing.end_step();
  EXPECT_EQ(missing.written().ops[0].scalar_count, 1U);
  EXPECT_EQ(missing.notes()["not taken on a device: updates that changed nothing"], 1U);
}

TEST(LateStats, memory_is_bounded_by_giving_up_the_oldest) {
  LateRun run({.queue_bytes = 64 << 10, .late_bytes = 128 << 10, .late_steps = 1 << 30});
  std::vector<double> numbers(4, 1.0);
  for (std::uint64_t i = 1; i <= 4000; ++i) {
    const TestTensor x(DType::kF32, {4}, numbers, i);
    run.op("relu", {}, {{"out", Late{x, i}.value()}});
  }
  const RecorderCounters counters = run.recorder->counters();
  EXPECT_GT(counters.late_lost, 2000U);
  EXPECT_LT(counters.late_lost, 4000U);
  // The newest ones are still waited for.
  const TestTensor last(DType::kF32, {4}, numbers, 4000);
  run.recorder->on_late_stats(4000, Late{last, 4000}.stats());
  const RecordBatch rows = run.closed();
  EXPECT_EQ(rows.values.size(), 4000U);
  EXPECT_TRUE(rows.values.back().has_stats);
  EXPECT_FALSE(rows.values.front().has_stats);
  EXPECT_EQ(rows.ops.size(), 4000U);
  expect_order(run.script->batches);
}

TEST(LateStats, a_full_queue_drops_routine_rows_and_leaves_none_that_names_a_dropped_value) {
  LateRun run({.on_full = OnFull::kDrop, .queue_bytes = 32 << 10});
  run.script->set_blocked(true);
  const TestTensor weight(DType::kF32, {4}, {1, 2, 3, 4}, 1'000'000);
  std::vector<double> numbers(4, 1.0);
  for (std::uint64_t i = 1; i <= 3000; ++i) {
    numbers[0] = i == 2000 ? kNan : 1;
    const TestTensor x(DType::kF32, {4}, numbers, i);
    run.op("add", {{"self", Late{weight, 1'000'000}.value()}}, {{"out", Late{x, i}.value()}});
    if (i == 50) run.recorder->on_late_stats(1'000'000, Late{weight, 1'000'000}.stats());
    if (i > 100) {
      numbers[0] = i - 100 == 2000 ? kNan : 1;
      run.recorder->on_late_stats(i - 100, Late{TestTensor(DType::kF32, {4}, numbers, 1), i - 100}.stats());
    }
  }
  run.script->set_blocked(false);
  const RecordBatch rows = run.closed();
  EXPECT_GT(run.recorder->counters().dropped_ops, 0U);
  expect_order(run.script->batches);
  const auto bad = [](const ValueRecord& v) { return v.has_stats && v.stats.nan > 0; };
  EXPECT_EQ(std::count_if(rows.values.begin(), rows.values.end(), bad), 1);
}

TEST(LateStats, a_failed_write_forgets_what_is_awaited_and_goes_on) {
  LateRun run;
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2), z(DType::kF32, {2}, {3, 4}, 3);
  run.op("relu", {}, {{"out", x.value()}});
  run.script->set_failing(true);
  EXPECT_FALSE(run.recorder->flush());
  run.script->set_failing(false);
  run.op("relu", {{"self", x.value()}}, {{"out", Late{y, 1}.value()}});
  run.recorder->on_late_stats(1, Late{y, 1}.stats());
  run.op("relu", {{"self", Late{y, 2}.value()}}, {{"out", Late{z, 3}.value()}});
  run.recorder->on_late_stats(3, Late{z, 3}.stats());
  EXPECT_FALSE(run.recorder->close());
  expect_order(run.script->batches);
  const RecordBatch rows = run.script->all();
  EXPECT_EQ(rows.ops.size(), 2U);
}

TEST(LateStats, come_from_another_thread_while_the_run_goes_on) {
  LateRun run({.late_steps = 1 << 30});
  constexpr std::uint64_t kOps = 3000;
  std::atomic<std::uint64_t> told{0};
  const TestTensor any(DType::kF32, {4}, {1, 2, 3, 4}, 1);
  const TensorStats stats = compute_stats(any.tensor(), StatsLevel::kSums);
  std::thread drain([&] {
    for (std::uint64_t next = 1; next <= kOps;) {
      if (next > told.load(std::memory_order_acquire)) {
        std::this_thread::yield();
        continue;
      }
      next % 100 == 7 ? run.recorder->on_late_lost(next) : run.recorder->on_late_stats(next, stats);
      ++next;
    }
  });
  for (std::uint64_t i = 1; i <= kOps; ++i) {
    const TestTensor x(DType::kF32, {4}, {1, 2, 3, 4}, i);
    run.op("relu", {}, {{"out", Late{x, i}.value()}});
    told.store(i, std::memory_order_release);
    if (i % 100 == 0) run.end_step();
    run.recorder->on_storage_released(i);
  }
  drain.join();
  const RecordBatch rows = run.closed();
  ASSERT_EQ(rows.values.size(), kOps);
  for (std::size_t i = 0; i < rows.values.size(); ++i) EXPECT_EQ(rows.values[i].has_stats, (i + 1) % 100 != 7) << i;
  EXPECT_EQ(run.recorder->counters().late_lost, kOps / 100);
  expect_order(run.script->batches);
}

TEST(LateStats, a_kill_while_rows_wait_leaves_a_trace_that_reads_up_to_them) {
  const testing_support::TempDir dir;
  const std::string root = dir.path("run");
  const pid_t victim = fork();
  ASSERT_GE(victim, 0);
  if (victim == 0) {
    auto recorder = Recorder::open({.run_dir = root}, {});
    if (!recorder) _exit(2);
    const auto relu = [&](const ValueView& out) {
      const OpOutput made{"out", out};
      OpEvent event;
      event.op = "relu";
      event.outputs = {&made, 1};
      (*recorder)->on_op(event);
    };
    const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, kNan}, 2), z(DType::kF32, {2}, {5, 6}, 3);
    relu(Late{x, 1}.value());
    (*recorder)->on_late_stats(1, Late{x, 1}.stats());
    (void)(*recorder)->flush();
    relu(Late{y, 2}.value());
    relu(z.value());
    (void)(*recorder)->flush();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(victim, &status, 0), victim);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  auto attempts = find_attempts(root);
  ASSERT_TRUE(attempts) << attempts.status().message();
  TraceHealth health;
  std::vector<RecordBatch> batches;
  EXPECT_TRUE(read_attempt(attempts->front(), [&](const RecordBatch& b) { batches.push_back(b); }, health));
  EXPECT_FALSE(health.damaged());
  std::size_t ops = 0;
  for (const RecordBatch& b : batches) ops += b.ops.size();
  EXPECT_EQ(ops, 1U) << "the second waited, the third stood behind it";
  expect_order(batches);
}

}  // namespace
}  // namespace nanhunt::record
