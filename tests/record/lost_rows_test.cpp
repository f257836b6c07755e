// SPDX-License-Identifier: Apache-2.0
// What a failed write leaves behind: no row in the file names a value that is not there, and everything that is
// missing is counted, no more and no less.
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::record {
namespace {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

// Every value that an op, mark or piece of evidence names has a row, in the same batch or an earlier one.
void expect_no_dangling_values(const std::vector<RecordBatch>& batches) {
  std::set<ValueId> values{0};
  for (const RecordBatch& b : batches) {
    for (const ValueRecord& v : b.values) {
      EXPECT_TRUE(values.insert(v.id).second) << "value " << v.id << " is written twice";
      EXPECT_TRUE(values.contains(v.base)) << "base of value " << v.id;
    }
    for (const auto* args : {&b.inputs, &b.outputs}) {
      for (const OpArg& arg : *args) EXPECT_TRUE(values.contains(arg.value)) << "argument " << arg.value;
    }
    for (const MarkRecord& mark : b.marks) EXPECT_TRUE(values.contains(mark.value)) << "mark of " << mark.value;
    for (const EvidenceRecord& e : b.evidence) EXPECT_TRUE(values.contains(e.value));
    for (const HistogramRecord& h : b.histograms) EXPECT_TRUE(values.contains(h.value));
  }
}

// A training loop with a weight that stays and is rewritten now and then.
class Loop {
 public:
  void step(Recorder& recorder) {
    const TestTensor out(DType::kF32, {1}, {1.0 + double(step_)}, ++storage_);
    testing::op([&](const OpEvent& e) { recorder.on_op(e); }, "mul", {{"self", weight_}, {"other", frozen_}},
                {{"out", out}}, {}, "layer" + std::to_string(step_ % 5));
    recorder.on_mark({step_, 0, TensorRole::kLoss, "loss", out.value()});
    if (step_ % 7 == 6) {
      weight_.write({double(step_)});
      testing::op([&](const OpEvent& e) { recorder.on_op(e); }, "add_",
                  {{"self", weight_.old_version(), ArgRole::kOverwritten}, {"other", out}}, {{"out", weight_}});
    }
    recorder.on_step_end({step_, false, 1, 0.1, 1});
    recorder.on_storage_released(out.storage());
    ++step_;
  }
  std::uint64_t ops() const { return step_ + step_ / 7; }

 private:
  TestTensor weight_{DType::kF32, {1}, {1}, 1}, frozen_{DType::kF32, {1}, {2}, 2};
  std::uint64_t storage_ = 2;
  std::uint32_t step_ = 0;
};

class LostRows : public ::testing::Test {
 protected:
  void open(RecorderOptions options) {
    options.flush_ms = 1 << 20;
    auto made = make_recorder(options, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(made) << made.status().message();
    recorder = std::move(*made);
  }
  std::shared_ptr<WriterScript> script = std::make_shared<WriterScript>();
  std::unique_ptr<Recorder> recorder;
  Loop loop;
};

TEST_F(LostRows, a_value_whose_row_was_lost_is_written_again_for_the_next_that_names_it) {
  open({});
  // given that the batch with the first rows of both weights is lost
  script->set_failing(true);
  for (int i = 0; i < 3; ++i) loop.step(*recorder);
  EXPECT_EQ(recorder->flush().code(), StatusCode::kWriteFailed);
  script->set_failing(false);
  // when they are used again
  for (int i = 0; i < 3; ++i) loop.step(*recorder);
  EXPECT_EQ(recorder->close().code(), StatusCode::kWriteFailed);
  // then
  expect_no_dangling_values(script->batches);
  EXPECT_EQ(script->all().ops.size(), 3u);
  EXPECT_EQ(recorder->counters().dropped_ops, 3u);
}

TEST_F(LostRows, batches_that_waited_behind_a_lost_one_go_with_it_and_are_counted) {
  // given three batches in the queue, of which the first cannot be written
  open({});
  script->set_blocked(true);
  script->failures_left = 1;
  std::thread flusher;
  for (int batch = 0; batch < 3; ++batch) {
    for (int i = 0; i < 2000; ++i) loop.step(*recorder);
    if (batch == 0) {
      flusher = std::thread([&] { (void)recorder->flush(); });
      ASSERT_TRUE(script->wait([&] { return script->waiting == 1; }));
    }
  }
  script->set_blocked(false);
  flusher.join();
  (void)recorder->flush();
  // when the run goes on
  for (int i = 0; i < 100; ++i) loop.step(*recorder);
  EXPECT_EQ(recorder->close().code(), StatusCode::kWriteFailed);
  // then
  expect_no_dangling_values(script->batches);
  const RecordBatch all = script->all();
  EXPECT_GE(all.ops.size(), 100u);
  EXPECT_EQ(all.ops.size() + recorder->counters().dropped_ops, loop.ops());
  std::uint64_t told = 0;
  for (const DropRecord& drop : all.drops) told += drop.ops;
  EXPECT_EQ(told, recorder->counters().dropped_ops);
}

TEST_F(LostRows, a_disk_that_is_full_again_and_again_leaves_nothing_dangling) {
  open({});
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    script->set_failing(random() % 3 == 0);
    for (std::uint64_t i = random() % 1500; i > 0; --i) loop.step(*recorder);
    if (random() % 4 == 0) (void)recorder->flush();
  }
  script->set_failing(false);
  (void)recorder->flush();
  loop.step(*recorder);
  (void)recorder->close();
  expect_no_dangling_values(script->batches);
  const RecordBatch all = script->all();
  EXPECT_GT(recorder->counters().dropped_ops, 0u);
  EXPECT_EQ(all.ops.size() + recorder->counters().dropped_ops, loop.ops());
  std::set<StringId> strings{0};
  for (const StringRecord& s : all.strings) strings.insert(s.id);
  for (const OpRecord& op : all.ops) EXPECT_TRUE(strings.contains(op.op) && strings.contains(op.module));
}

// The same with a real file under a limit that comes and goes.
TEST_F(LostRows, a_trace_written_while_the_disk_was_full_for_a_while_holds_no_op_without_its_values) {
  const testing_support::TempDir temporary;
  const std::string dir = temporary.path("run");
  for (rlim_t limit = 10'000; limit < 40'000; limit += 1'777) {
    std::filesystem::remove_all(dir);
    RecorderOptions options;
    options.run_dir = dir;
    options.flush_ms = 1 << 20;
    auto opened = Recorder::open(options, {});
    ASSERT_TRUE(opened) << opened.status().message();
    Loop run;
    auto* const old_handler = signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit full{limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    for (int i = 0; i < 6000; ++i) run.step(**opened);
    (void)(*opened)->flush();
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, old_handler);
    for (int i = 0; i < 100; ++i) run.step(**opened);
    (void)(*opened)->close();
    // then
    std::vector<RecordBatch> batches;
    TraceHealth health;
    std::uint64_t ops = 0;
    const Status read = read_attempt(
        find_attempts(dir)->front(),
        [&](const RecordBatch& b) {
          batches.push_back(b);
          ops += b.ops.size();
        },
        health);
    EXPECT_EQ(read.code(), StatusCode::kDamaged) << "a reader must know that rows are missing";
    EXPECT_GE(ops, 100u);
    EXPECT_EQ(ops + (*opened)->counters().dropped_ops, run.ops()) << limit;
    expect_no_dangling_values(batches);
  }
}

}  // namespace
}  // namespace nanhunt::record
