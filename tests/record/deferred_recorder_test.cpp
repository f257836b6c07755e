// SPDX-License-Identifier: Apache-2.0
// Contents that are read where the host cannot, and what is read of them comes later: from a device, which the tests
// play.
#include "src/record/device/deferred_recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/checksum.h"
#include "nanhunt/recorder.h"
#include "src/record/recorder.h"
#include "tests/record/deferred_support.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::record {
namespace {

using testing::TestTensor;

constexpr std::string_view kLostNote = "not taken on a device: statistics that were lost or came too late";

// Everything that rows say but numbers of layouts and names, which may be given in another order.
void expect_same_rows(const RecordBatch& got, const RecordBatch& expected) {
  EXPECT_EQ(got.values, expected.values);
  EXPECT_EQ(got.ops, expected.ops);
  EXPECT_EQ(got.inputs, expected.inputs);
  EXPECT_EQ(got.outputs, expected.outputs);
  EXPECT_EQ(got.scalars, expected.scalars);
  EXPECT_EQ(got.evidence, expected.evidence);
  EXPECT_EQ(got.histograms, expected.histograms);
  EXPECT_EQ(got.changed, expected.changed);
  EXPECT_EQ(got.marks, expected.marks);
}

TEST(DeferredRecorder, an_op_whose_outputs_are_read_in_both_ways_has_its_evidence_once) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), here(DType::kF32, {2}, {1, kInf}, 2),
      there(DType::kF32, {2}, {3, 4}, 3);
  DeferredRun run;
  const Late out{there, 7};
  run.op("frexp", {{"self", x.value()}}, {{"mantissa", here.value()}, {"exponent", out.value()}});
  run.come(out);
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.evidence.size(), 1U);
  EXPECT_EQ(rows.evidence[0].flat_index, 1);
}

TEST(DeferredRecorder, events_wait_and_their_rows_are_then_as_if_the_host_had_read_them) {
  const TestTensor x(DType::kF32, {4}, {1, 2, 0, 4}, 1), y(DType::kF32, {4}, {1, kInf, 0, 8}, 2);
  DeferredRun host;
  host.op("mul", {{"self", x.value()}}, {{"out", y.value()}}, {{"other", 2}});
  DeferredRun late;
  const Late in{x, 1}, out{y, 2};
  late.op("mul", {{"self", in.value()}}, {{"out", out.value()}}, {{"other", 2}}, 3);
  EXPECT_TRUE(late.written().values.empty());
  EXPECT_EQ(late.recorder->anomalies(), 0U);

  late.come(in);
  late.come(out);
  EXPECT_TRUE(late.written().ops.empty()) << "its findings are still to come";
  const DeferredOperand operand{0, 1, 2};
  const DeferredElement element{0, false, 1, kInf, {&operand, 1}};
  const TensorStats bins = compute_stats(x.tensor(), StatsLevel::kHistogram),
                    more = compute_stats(y.tensor(), StatsLevel::kHistogram);
  const DeferredHistogram histograms[] = {{false, 0, bins.histogram_min_exponent, bins.histogram},
                                      {true, 0, more.histogram_min_exponent, more.histogram}};
  late.recorder->on_deferred_evidence(3, {.elements = {&element, 1}, .histograms = histograms});

  const RecordBatch expected = host.written(), got = late.written();
  expect_same_rows(got, expected);
  EXPECT_EQ(got.evidence.size(), 1U);
  EXPECT_EQ(got.histograms.size(), 2U);
  EXPECT_EQ(late.recorder->anomalies(), 1U);
  EXPECT_EQ(late.recorder->counters().deferred_readings, 3U);
  EXPECT_EQ(late.recorder->counters().deferred_lost, 0U);
}

TEST(DeferredRecorder, contents_that_changed_unseen_are_told_as_if_the_host_had_read_them) {
  const auto run_with = [](bool late) {
    TestTensor x(DType::kF32, {2, 2}, {1, 2, 3, 4}, 1);
    const TestTensor turned = x.t(), y(DType::kF32, {2, 2}, {2, 4, 6, 8}, 2),
                     z(DType::kF32, {2, 2}, {2, kInf, 6, 8}, 3);
    std::uint64_t number = 0;
    DeferredRun run;
    std::vector<std::pair<std::uint64_t, KnownContents>> coming;
    const auto see = [&](const TestTensor& tensor) {
      if (!late) return tensor.value();
      const Late seen{tensor, ++number};
      coming.emplace_back(number, seen.contents());
      return seen.value();
    };
    run.op("add", {}, {{"out", see(x)}});
    run.op("mul", {{"self", see(x)}}, {{"out", see(y)}});
    x.corrupt(1, kInf);
    run.op("mul", {{"self", see(x)}}, {{"out", see(z)}});
    run.op("view", {{"self", see(x)}}, {{"out", see(turned)}});
    run.recorder->check_contents(0, see(y));
    run.recorder->on_mark({0, 0, TensorRole::kParameter, "weight", see(x)});
    for (auto it = coming.rbegin(); it != coming.rend(); ++it) run.recorder->on_deferred_contents(it->first, it->second);
    return run.closed();
  };
  const RecordBatch expected = run_with(false), got = run_with(true);
  ASSERT_EQ(expected.changed.size(), 1U);
  EXPECT_EQ(expected.changed[0].since_seq, 1U);
  expect_same_rows(got, expected);
}

TEST(DeferredRecorder, contents_of_which_nothing_came_blame_nobody) {
  TestTensor x(DType::kF32, {2}, {1, 2}, 1);
  const TestTensor y(DType::kF32, {2}, {2, 4}, 2), z(DType::kF32, {2}, {2, kInf}, 3);
  DeferredRun run;
  const Late before{x, 1};
  run.op("add", {}, {{"out", before.value()}});
  run.come(before);
  x.corrupt(1, kInf);
  run.op("mul", {{"self", Late{x, 2}.value()}}, {{"out", Late{z, 3}.value()}});
  run.recorder->on_deferred_lost(2);
  run.recorder->on_deferred_lost(3);
  const RecordBatch rows = run.closed();
  EXPECT_TRUE(rows.changed.empty());
  EXPECT_TRUE(rows.evidence.empty());
  EXPECT_EQ(run.recorder->anomalies(), 0U);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 2U);
}

TEST(DeferredRecorder, what_comes_out_of_order_leaves_rows_in_order) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2), z(DType::kF32, {2}, {5, kNan}, 3);
  DeferredRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.op("log", {{"self", Late{y, 9}.value()}}, {{"out", Late{z, 3}.value()}});
  run.come({z, 3});
  run.come({y, 9});
  EXPECT_TRUE(run.written().ops.empty());
  run.come({x, 1});
  EXPECT_TRUE(run.written().ops.empty());
  run.come({y, 2});
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.ops.size(), 2U);
  EXPECT_LT(rows.ops[0].seq, rows.ops[1].seq);
  ASSERT_EQ(rows.values.size(), 3U);
  EXPECT_EQ(rows.values[1].stats, Late({y, 2}).contents().stats);
  EXPECT_EQ(run.recorder->anomalies(), 1U);
  expect_order(run.script->batches);
}

TEST(DeferredRecorder, what_comes_under_one_number_is_told_of_every_event_that_waits_for_it) {
  const TestTensor x(DType::kF32, {2}, {1, kNan}, 1), y(DType::kF32, {2}, {3, 4}, 2);
  DeferredRun run;
  run.recorder->on_mark({0, 0, TensorRole::kParameter, "embedding", Late{x, 1}.value()});
  run.recorder->on_mark({0, 0, TensorRole::kParameter, "head", Late{x, 1}.value()});
  run.recorder->on_mark({0, 0, TensorRole::kParameter, "bias", Late{y, 2}.value()});
  run.come({x, 1});
  RecordBatch rows = run.written();
  ASSERT_EQ(rows.marks.size(), 2U);
  EXPECT_EQ(rows.marks[0].value, rows.marks[1].value);
  ASSERT_EQ(rows.values.size(), 1U);
  EXPECT_EQ(rows.values[0].stats, Late({x, 1}).contents().stats);
  run.come({y, 2});
  rows = run.written();
  EXPECT_EQ(rows.marks.size(), 3U);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 0U);
}

TEST(DeferredRecorder, every_kind_of_event_keeps_its_place_behind_one_that_waits) {
  const auto run_with = [](bool late) {
    TestTensor x(DType::kF32, {2}, {1, 2}, 1);
    DeferredRun run;
    run.op("relu", {}, {{"out", late ? Late{x, 1}.value() : x.value()}});
    {  // everything that an event borrows is gone when it is told
      const std::string text = "a text that is too long for the small string";
      const std::vector<std::int64_t> ids{3, 5};
      const std::vector<std::uint32_t> ranks{0, 1};
      const TestTensor share(DType::kF32, {2}, {5, 6}, 7);
      const ValueView shown = share.value();
      run.recorder->on_batch({0, 0, ids});
      ScalerEvent scaler;
      scaler.text = text;
      run.recorder->on_scaler(scaler);
      run.recorder->on_health({0, 1, 1, text, 2, 3});
      run.recorder->on_norm({0, TensorRole::kParameter, text, 2, 3});
      run.recorder->on_unheard({0, text});
      run.recorder->on_mark({0, 0, TensorRole::kParameter, text, shown});
      run.recorder->check_contents(0, shown);
      run.recorder->on_changed({0, shown, 0, 0, true});
      ProbeEvent probe;
      probe.text = text;
      run.recorder->on_probe(probe);
      run.recorder->on_capture({0, 0, text, 12});
      run.recorder->on_note({0, text, 4});
      CollectiveEvent call;
      call.group = text;
      call.ranks = ranks;
      call.shares = {&shown, 1};
      run.recorder->on_collective(call);
      KernelEvent kernel;
      kernel.name = text;
      run.recorder->on_kernel(kernel);
      run.recorder->on_experiment({});
      run.op("neg", {{"self", shown}}, {{"out", shown}}, {{"a_scalar_of_a_long_enough_name", 2}});
      run.recorder->on_storage_released(7);
      run.end_step();
    }
    if (late) {
      EXPECT_TRUE(run.written().strings.empty());
      EXPECT_EQ(dynamic_cast<NumberingRecorder&>(*run.recorder).next_seq(), 2U) << "held ops have numbers";
      run.come({x, 1});
    }
    return run.closed();
  };
  RecordBatch expected = run_with(false), got = run_with(true);
  ASSERT_EQ(expected.steps.size(), 1U);
  ASSERT_EQ(got.steps.size(), 1U);
  got.steps[0].wall_ns = expected.steps[0].wall_ns;
  EXPECT_TRUE(got == expected);
  EXPECT_EQ(got.strings, expected.strings);
  EXPECT_EQ(got.kernels.size(), 1U);
  EXPECT_EQ(got.experiments.size(), 1U);
}

TEST(DeferredRecorder, what_is_lost_is_written_as_unknown_and_told) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, kInf}, 2);
  DeferredRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.come({x, 1});
  run.recorder->on_deferred_lost(2);
  run.end_step();
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  EXPECT_TRUE(rows.values[0].has_stats);
  EXPECT_FALSE(rows.values[1].has_stats);
  EXPECT_EQ(rows.ops.size(), 1U);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 1U);
  EXPECT_EQ(run.notes()[std::string(kLostNote)], 1U);
}

TEST(DeferredRecorder, what_does_not_come_in_so_many_steps_is_given_up) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2);
  DeferredRun run({.deferred_steps = 3});
  run.op("relu", {{"self", x.value()}}, {{"out", Late{y, 1}.value()}});
  for (int i = 0; i < 3; ++i) run.end_step();
  EXPECT_TRUE(run.written().ops.empty());
  run.end_step();
  RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  EXPECT_FALSE(rows.values[1].has_stats);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 1U);
  run.come({y, 1});  // too late
  EXPECT_EQ(run.closed().values, rows.values);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 1U);
}

TEST(DeferredRecorder, what_is_out_when_it_closes_is_given_up) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2);
  DeferredRun run;
  run.op("relu", {{"self", x.value()}}, {{"out", Late{y, 1}.value()}}, {}, 2);
  run.recorder->on_mark({0, 0, TensorRole::kLoss, "loss", Late{y, 3}.value()});
  const RecordBatch rows = run.closed();
  EXPECT_EQ(rows.ops.size(), 1U);
  EXPECT_EQ(rows.marks.size(), 1U);
  ASSERT_EQ(rows.values.size(), 2U);
  EXPECT_FALSE(rows.values[1].has_stats);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 3U);
  EXPECT_EQ(run.notes()[std::string(kLostNote)], 3U);
  run.come({y, 1});
  EXPECT_EQ(run.recorder->counters().dropped_other, 0U);
}

TEST(DeferredRecorder, statistics_that_do_not_fit_the_value_are_not_believed) {
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1), more(DType::kF32, {3}, {1, 2, 3}, 2);
  DeferredRun run;
  run.op("relu", {}, {{"out", Late{x, 1}.value()}});
  run.op("relu", {}, {{"out", Late{more, 2}.value()}});
  run.recorder->on_deferred_contents(1, Late{more, 2}.contents());
  KnownContents little = Late{more, 2}.contents();
  little.stats = compute_stats(more.tensor(), StatsLevel::kFinite);
  run.recorder->on_deferred_contents(2, little);
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 2U);
  for (const ValueRecord& v : rows.values) EXPECT_FALSE(v.has_stats);
}

TEST(DeferredRecorder, zero_counts_settle_flushed_when_they_come) {
  const TestTensor x(DType::kF16, {4}, {1e-4, 2, 0, 4}, 1), y(DType::kF16, {4}, {0, 2e-5, 0, 4e-5}, 2);
  const TestTensor z(DType::kF16, {4}, {0, 0, 0, 0}, 3), w(DType::kF16, {4}, {1, 0, 1, 1}, 4);
  DeferredRun run;
  run.op("mul", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}}, {{"other", 1e-5}});
  // Two factors with zeros: only their elements say which zero excuses which.
  run.op("mul", {{"self", Late{y, 7}.value()}, {"other", Late{w, 3}.value()}}, {{"out", Late{z, 4}.value()}}, {}, 5);
  const TestTensor z2(DType::kF16, {4}, {0, 0, 0, 0}, 5);
  run.op("mul", {{"self", Late{y, 8}.value()}, {"other", Late{w, 9}.value()}}, {{"out", Late{z2, 6}.value()}});
  for (const Late& late :
       {Late{x, 1}, Late{y, 2}, Late{y, 7}, Late{w, 3}, Late{z, 4}, Late{y, 8}, Late{w, 9}, Late{z2, 6}}) {
    run.come(late);
  }
  run.recorder->on_deferred_evidence(5, {.flushed = 1});
  run.end_step();
  const RecordBatch rows = run.written();
  ASSERT_EQ(rows.values.size(), 5U);
  EXPECT_EQ(rows.values[1].flushed, 1);
  EXPECT_EQ(rows.values[3].flushed, 1);
  EXPECT_EQ(rows.values[4].flushed, -1);
  EXPECT_EQ(run.notes()["not taken on a device: how many values were lost to zero"], 1U);
}

TEST(DeferredRecorder, births_without_elements_are_told) {
  const TestTensor x(DType::kF32, {2}, {0, 2}, 1), y(DType::kF32, {2}, {kInf, 0.5}, 2);
  DeferredRun run;
  run.op("reciprocal", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.come({x, 1});
  run.come({y, 2});
  run.end_step();
  const RecordBatch rows = run.written();
  EXPECT_TRUE(rows.evidence.empty());
  EXPECT_EQ(run.notes()["not taken on a device: first bad elements and what they were made from"], 1U);
  EXPECT_EQ(run.notes()["not taken on a device: histograms of ops where bad numbers began"], 2U);
}

TEST(DeferredRecorder, badness_that_was_carried_on_is_no_birth) {
  const TestTensor x(DType::kF32, {2}, {kInf, 2}, 1), y(DType::kF32, {2}, {kInf, 0.5}, 2);
  DeferredRun run;
  run.op("relu", {{"self", Late{x, 1}.value()}}, {{"out", Late{y, 2}.value()}});
  run.come({y, 2});
  run.come({x, 1});
  run.end_step();
  run.closed();
  EXPECT_TRUE(run.notes().empty());
  EXPECT_EQ(run.recorder->anomalies(), 1U);
}

TEST(DeferredRecorder, lost_updates_stand_among_the_scalars_or_are_told_as_not_taken) {
  TestTensor weight(DType::kF16, {2}, {1, 1}, 1);
  const TestTensor change(DType::kF16, {2}, {1e-5, 0.5}, 2);
  weight.write({1, 1.5});
  const TestTensor old = weight.old_version();
  const auto add = [&](DeferredRun& run) {
    run.op("add_", {{"self", old.value(), ArgRole::kOverwritten}, {"other", Late{change, 1}.value()}},
           {{"out", Late{weight, 2}.value()}}, {{"alpha", 1}}, 3, Phase::kOptimizer);
    run.come({change, 1});
    run.come({weight, 2});
  };
  DeferredRun taken;
  add(taken);
  taken.recorder->on_deferred_evidence(3, {.updates = 2, .lost_updates = 1, .lost_update_share = 0.25});
  const RecordBatch rows = taken.written();
  ASSERT_EQ(rows.ops[0].scalar_count, 4U);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 1].value, 2);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 2].value, 1);
  EXPECT_EQ(rows.scalars[rows.ops[0].first_scalar + 3].value, 0.25);

  DeferredRun missing;
  add(missing);
  missing.recorder->on_deferred_evidence(3, {});
  missing.end_step();
  EXPECT_EQ(missing.written().ops[0].scalar_count, 1U);
  EXPECT_EQ(missing.notes()["not taken on a device: updates that changed nothing"], 1U);
}

TEST(DeferredRecorder, memory_is_bounded_by_giving_up_the_oldest) {
  DeferredRun run({.deferred_bytes = 128 << 10, .deferred_steps = 1 << 30});
  std::vector<double> numbers(4, 1.0);
  for (std::uint64_t i = 1; i <= 4000; ++i) {
    const TestTensor x(DType::kF32, {4}, numbers, i);
    run.op("relu", {}, {{"out", Late{x, i}.value()}});
  }
  const RecorderCounters counters = run.recorder->counters();
  EXPECT_GT(counters.deferred_lost, 3000U);
  EXPECT_LT(counters.deferred_lost, 4000U);
  // The newest ones are still waited for.
  const TestTensor last(DType::kF32, {4}, numbers, 4000);
  run.come({last, 4000});
  const RecordBatch rows = run.closed();
  EXPECT_EQ(rows.values.size(), 4000U);
  EXPECT_TRUE(rows.values.back().has_stats);
  EXPECT_FALSE(rows.values.front().has_stats);
  EXPECT_EQ(rows.ops.size(), 4000U);
  expect_order(run.script->batches);
}

TEST(DeferredRecorder, findings_that_came_for_events_that_are_held_count_among_what_is_held) {
  // Given ops that fit, behind one whose contents do not come.
  DeferredRun run({.deferred_bytes = 128 << 10, .deferred_steps = 1 << 30});
  const TestTensor x(DType::kF32, {2}, {1, 2}, 1);
  run.op("relu", {}, {{"out", Late{x, 1}.value()}});
  for (std::uint64_t number = 2; number < 42; ++number) run.op("neg", {}, {}, {}, number);
  ASSERT_EQ(run.recorder->counters().deferred_lost, 0U);
  ASSERT_EQ(run.written().ops.size(), 0U);

  // When 8 KB come for each of them, more than may be held.
  const std::vector<std::int64_t> bins(1024, 1);
  const std::vector<DeferredHistogram> histograms(1, DeferredHistogram{.of_output = true, .bins = bins});
  for (std::uint64_t number = 2; number < 42; ++number) {
    run.recorder->on_deferred_evidence(number, {.histograms = histograms});
  }

  // Then the one that they waited for is given up, alone, and they are told.
  EXPECT_EQ(run.written().ops.size(), 41U);
  EXPECT_EQ(run.recorder->counters().deferred_lost, 1U);
}

TEST(DeferredRecorder, what_the_host_can_read_is_remembered_as_it_was) {
  const TestTensor waits(DType::kF32, {2}, {1, 2}, 1), out(DType::kF32, {2}, {1, 2}, 5);
  TestTensor small(DType::kF32, {2}, {3, 4}, 2), large(DType::kF32, {1 << 19}, std::vector<double>(1 << 19, 1.0), 3);
  DeferredRun run;
  run.op("relu", {}, {{"out", Late{waits, 1}.value()}});
  run.op("neg", {{"self", small.value()}, {"other", large.value()}}, {{"out", out.value()}});
  small.corrupt(0, kNan);
  large.corrupt(0, kNan);
  run.come({waits, 1});
  run.op("neg", {{"self", small.value()}, {"other", large.value()}}, {{"out", out.value()}});
  const RecordBatch rows = run.closed();
  ASSERT_EQ(rows.values.size(), 7U);
  EXPECT_EQ(rows.values[1].stats.sum, 7);
  EXPECT_EQ(rows.values[2].stats.sum, 1 << 19);
  EXPECT_EQ(rows.changed.size(), 2U);
}

TEST(DeferredRecorder, events_told_by_number_are_held_with_their_numbers) {
  const auto run_with = [](bool late) {
    const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, 4}, 2);
    DeferredRun run;
    auto& recorder = dynamic_cast<NumberingRecorder&>(*run.recorder);
    {
      const StringId op = recorder.number_text("relu"), self = recorder.number_text("self"),
                     out = recorder.number_text("out");
      const LayoutId layout = recorder.number_layout(x.tensor());
      const OpInput in{"", late ? Late{x, 1}.value() : x.value()};
      const OpOutput made{"", y.value()};
      OpEvent event;
      event.inputs = {&in, 1};
      event.outputs = {&made, 1};
      recorder.on_op(event, {.op = op,
                             .input_slots = {&self, 1},
                             .output_slots = {&out, 1},
                             .scalar_names = {},
                             .input_layouts = {&layout, 1},
                             .output_layouts = {&layout, 1},
                             .traits = {}});
      recorder.on_mark({0, 0, TensorRole::kParameter, "", y.value()}, op, layout);
      recorder.check_contents(0, y.value(), layout);
    }
    run.come({x, 1});
    return run.closed();
  };
  expect_same_rows(run_with(true), run_with(false));
  EXPECT_EQ(run_with(true).inputs.size(), 1U);
}

TEST(DeferredRecorder, contents_come_from_another_thread_while_the_run_goes_on) {
  DeferredRun run({.deferred_steps = 1 << 30});
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
      next % 100 == 7 ? run.recorder->on_deferred_lost(next) : run.recorder->on_deferred_stats(next, stats);
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
  EXPECT_EQ(run.recorder->counters().deferred_lost, kOps / 100);
  expect_order(run.script->batches);
}

TEST(DeferredRecorder, a_kill_while_events_wait_leaves_a_trace_that_reads_up_to_them) {
  const testing_support::TempDir dir;
  const std::string root = dir.path("run");
  const pid_t victim = fork();
  ASSERT_GE(victim, 0);
  if (victim == 0) {
    auto opened = Recorder::open({.run_dir = root}, {});
    if (!opened) _exit(2);
    Recorder& late = **opened;
    const auto relu = [&](const ValueView& out) {
      const OpOutput made{"out", out};
      OpEvent event;
      event.op = "relu";
      event.outputs = {&made, 1};
      late.on_op(event);
    };
    const TestTensor x(DType::kF32, {2}, {1, 2}, 1), y(DType::kF32, {2}, {3, kNan}, 2), z(DType::kF32, {2}, {5, 6}, 3);
    relu(Late{x, 1}.value());
    late.on_deferred_contents(1, Late{x, 1}.contents());
    (void)late.flush();
    relu(Late{y, 2}.value());
    relu(z.value());
    (void)late.flush();
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
