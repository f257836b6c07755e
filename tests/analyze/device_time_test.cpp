// SPDX-License-Identifier: Apache-2.0
// Kernels of a GPU as rows of a trace: time by op, nanhunt's own share, the kernel of an origin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Analysis analyse(const TraceBuilder& trace, std::size_t events = 0) {
  auto analyzer = Analyzer::make();
  for (const RecordBatch& batch : trace.batches(events)) analyzer->add(batch);
  TraceHealth health;
  health.clean_end = true;
  RunInfo info;
  info.rank = 3;
  info.world_size = 4;
  return analyzer->finish(info, health);
}

// A step in which exp overflows (or, in the twin, does not), with kernels that are told late.
TraceBuilder make_run(bool overflows, bool watched) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(0, 100));
  const Handle e = t.in("head").op("exp", {{"self", x}}, overflows ? finite().inf(1) : finite());
  const std::uint64_t exp_seq = t.next_seq() - 1;
  const Handle s = t.op("sum", {{"self", e}}, overflows ? finite(1).inf(1) : finite(1));
  const std::uint64_t sum_seq = t.next_seq() - 1;
  t.mark(TensorRole::kLoss, "loss", s);
  t.end_step(overflows ? std::numeric_limits<double>::infinity() : 1);
  if (watched) {
    t.kernels_of(sum_seq, "reduce", 300);
    t.kernels_of(exp_seq, "exp_tail", 10);
    t.kernels_of(exp_seq, "exp_f16", 700, 2, 2);
    t.kernels_of(exp_seq, "stats", 50, 1, 1, true);
    t.kernels_of(kNoSeq, "fill", 40, 4, 3);
    t.kernels_of(sum_seq, "", 0, 1, 0);
  }
  t.end_step();
  return t;
}

TEST(DeviceTime, the_kernel_of_the_origin_is_the_one_that_ran_longest_for_it) {
  const Analysis a = analyse(make_run(true, true));
  ASSERT_THAT(a.findings, SizeIs(1));
  EXPECT_EQ(a.findings[0].place.op, "exp");
  EXPECT_EQ(a.findings[0].kernel, "exp_f16");
}

TEST(DeviceTime, a_run_without_a_fault_has_times_and_nothing_to_name) {
  const Analysis a = analyse(make_run(false, true));
  EXPECT_THAT(a.findings, IsEmpty());
  EXPECT_EQ(a.verdict.status, VerdictStatus::kClean);
  ASSERT_TRUE(a.device_time);
}

TEST(DeviceTime, a_run_whose_kernels_were_not_watched_has_none) {
  const Analysis a = analyse(make_run(true, false));
  EXPECT_FALSE(a.device_time);
  EXPECT_EQ(a.findings.at(0).kernel, "");
}

TEST(DeviceTime, time_is_added_up_by_op_longest_first_and_nanhunts_own_stands_apart) {
  for (const std::size_t events : {0, 1, 2, 3, 7}) {
    const Analysis a = analyse(make_run(true, true), events);
    ASSERT_TRUE(a.device_time);
    const DeviceTime& time = *a.device_time;
    EXPECT_EQ(time.rank, 3u);
    EXPECT_EQ(time.kernels, 10u);
    EXPECT_EQ(time.untimed, 2u);
    EXPECT_EQ(time.own_kernels, 1u);
    EXPECT_EQ(time.total_ns, 1100);
    EXPECT_EQ(time.own_ns, 50);
    EXPECT_EQ(time.without_op_ns, 40);
    ASSERT_THAT(time.rows, SizeIs(3));
    EXPECT_EQ(time.rows[0].op, "exp");
    EXPECT_EQ(time.rows[0].module, "head");
    EXPECT_EQ(time.rows[0].kernel, "exp_f16");
    EXPECT_EQ(time.rows[0].kernels, 3u);
    EXPECT_EQ(time.rows[0].duration_ns, 710);
    EXPECT_EQ(time.rows[1].op, "sum");
    EXPECT_EQ(time.rows[1].kernels, 2u);
    EXPECT_EQ(time.rows[1].timed, 1u);
    EXPECT_EQ(time.rows[2].op, "");
    EXPECT_EQ(time.rows[2].timed, 3u);
  }
}

TEST(DeviceTime, kernels_alone_change_no_verdict) {
  for (const bool overflows : {true, false}) {
    const Analysis with = analyse(make_run(overflows, true)), without = analyse(make_run(overflows, false));
    EXPECT_EQ(with.verdict.headline, without.verdict.headline);
    EXPECT_EQ(with.findings.size(), without.findings.size());
    EXPECT_EQ(with.coverage.ops, without.coverage.ops);
  }
}

TEST(DeviceTime, why_kernels_were_not_watched_stands_under_coverage) {
  TraceBuilder t = make_run(false, false);
  t.note("kernels: not watched, because libcupti was not found", 1);
  EXPECT_THAT(analyse(t).coverage.unwatched, Contains(HasSubstr("because libcupti was not found")));
}

TEST(DeviceTime, what_a_trace_lies_about_neither_overflows_nor_grows) {
  TraceBuilder t = make_run(true, true);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 3; ++i) t.kernels_of(0, "huge", std::numeric_limits<std::int64_t>::max(), kMost, kMost);
  t.kernels_of(0, "negative", -1000, 1, 1);
  t.kernels_of(0, "more timed than there are", 5, 1, 9);
  t.kernels_of(123456789, "of an op that is not there", 5);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    t.in("m" + std::to_string(i)).op("exp", {}, finite());
    t.kernels("k" + std::to_string(i), 1);
  }
  const Analysis a = analyse(t);
  EXPECT_EQ(a.device_time->total_ns, std::numeric_limits<std::int64_t>::max());
  EXPECT_LE(a.device_time->rows.size(), 64u);
  EXPECT_GE(a.device_time->rows_omitted, 4900u);
  EXPECT_EQ(a.findings.at(0).kernel, "huge");
}

}  // namespace
}  // namespace nanhunt
