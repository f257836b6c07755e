// SPDX-License-Identifier: Apache-2.0
// Where the health of two runs parts: real traces in, the first difference out.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/analyze/diff/diff.h"
#include "src/analyze/diff/diff_align.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trace_builder.h"

namespace nanhunt::analyze {
namespace {

using namespace testing_support;

// Two runs on disk, and what tells them apart.
class Diff : public ::testing::Test {
 protected:
  std::string new_run() { return dir_.path() + "/" + std::to_string(count_++); }
  std::string write(const TraceBuilder& trace, std::size_t events = 0, const std::string& level = "") {
    const std::string run = new_run();
    RunInfo info;
    info.level = level;
    auto writer = TraceWriter::create(run, info);
    EXPECT_TRUE(writer) << writer.status().message();
    for (const RecordBatch& batch : trace.batches(events)) EXPECT_TRUE((*writer)->write(batch));
    EXPECT_TRUE((*writer)->close());
    return run;
  }
  DiffResult diff_folders(const std::string& a, const std::string& b, double tolerance = 1) {
    auto found_a = find_attempts(a), found_b = find_attempts(b);
    EXPECT_TRUE(found_a && found_b);
    auto result = diff_attempts(found_a->front(), found_b->front(), {.tolerance = tolerance});
    EXPECT_TRUE(result) << result.status().message();
    return *result;
  }
  DiffResult diff(const TraceBuilder& a, const TraceBuilder& b, double tolerance = 1) {
    return diff_folders(write(a), write(b), tolerance);
  }

 private:
  TempDir dir_;
  int count_ = 0;
};

// "kind | op | module | phase | step | what" of the first difference in health.
std::string told(const DiffResult& result) {
  const Difference* d = result.first_health();
  if (d == nullptr) return "-";
  return std::string(diff_kind_name(d->kind)) + " | " + d->op + " | " + d->module + " | " +
         std::string(phase_name(d->phase)) + " | step " + std::to_string(d->step) + " | " + d->what;
}

struct Planted {
  std::uint32_t steps = 4;
  DType format = DType::kF32;
  double spread = 1;         // of every result
  bool extra_cast = false;   // an op more in each step
  std::uint32_t bad_from = 99;
};

TraceBuilder make(const Planted& run) {
  TraceBuilder t;
  for (std::uint32_t step = 0; step < run.steps; ++step) {
    t.step(step);
    auto x = t.value(finite(64).shape({8, 8}));
    t.mark(TensorRole::kBatch, "images", x);
    if (run.extra_cast) x = t.in("fc1").op("_to_copy", {{"self", x}}, finite(64).shape({8, 8}).as(run.format));
    const Numbers out = finite(64)
                            .shape({8, 8})
                            .as(run.format)
                            .range(-2 * run.spread, run.spread)
                            .squares(10 * run.spread * run.spread);
    const bool bad = step >= run.bad_from;
    const auto y = t.in("fc1").op("mm", {{"self", x}, {"mat2", x}}, bad ? out.inf(1).first_at(3) : out);
    t.in("fc1").op("relu", {{"self", y}}, bad ? out.inf(1) : out);
    t.end_step(bad ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  }
  return t;
}

TEST_F(Diff, finds_nothing_between_equal_runs) {
  const DiffResult result = diff(make({}), make({}));
  EXPECT_EQ(told(result), "-");
  for (const std::uint64_t count : result.counts) EXPECT_EQ(count, 0U);
  EXPECT_EQ(result.steps_compared, 4U);
  EXPECT_EQ(result.ops_compared, 8U);  // mm and relu of each step; the batch is no op
}

TEST_F(Diff, names_the_op_whose_result_is_bad_in_one_run) {
  const DiffResult result = diff(make({.bad_from = 2}), make({}));
  EXPECT_EQ(told(result), "badness | mm | fc1 | forward | step 2 | badness");
  EXPECT_EQ(result.first_health()->number_a, 1);
  EXPECT_EQ(result.first_health()->number_b, 0);
  // and the other way round
  EXPECT_EQ(told(diff(make({}), make({.bad_from = 2}))), "badness | mm | fc1 | forward | step 2 | badness");
}

TEST_F(Diff, aligns_runs_with_different_numbers_of_ops) {
  const DiffResult result = diff(make({.extra_cast = true, .bad_from = 3}), make({}));
  EXPECT_EQ(told(result), "badness | mm | fc1 | forward | step 3 | badness");
  EXPECT_EQ(result.counts[static_cast<std::size_t>(DiffKind::kOnlyInA)], 4U);
  EXPECT_EQ(result.first[static_cast<std::size_t>(DiffKind::kOnlyInA)]->op, "_to_copy");
  EXPECT_EQ(result.counts[static_cast<std::size_t>(DiffKind::kOnlyInB)], 0U);
}

TEST_F(Diff, takes_what_fp16_rounds_away_for_no_difference) {
  // given numbers that are a rounding of fp16 apart
  const Planted half{.format = DType::kF16, .spread = 1.0004};
  EXPECT_EQ(told(diff(make(half), make({}))), "-");
  // but the same between two runs in fp32 is one
  EXPECT_EQ(told(diff(make({.spread = 1.0004}), make({}))), "statistics | mm | fc1 | forward | step 0 | amax");
  // unless more is allowed
  EXPECT_EQ(told(diff(make({.spread = 1.0004}), make({}), 1000)), "-");
  // and what no rounding explains is one in any format
  EXPECT_EQ(told(diff(make({.format = DType::kF16, .spread = 4}), make({}))),
            "statistics | mm | fc1 | forward | step 0 | amax");
}

TEST_F(Diff, allows_downstream_of_a_narrow_format_what_was_rounded_away_there) {
  // given an fp16 result in one run, and fp32 ops behind it in both
  const auto run = [](DType format, double spread) {
    TraceBuilder t;
    const auto y = t.op("mm", {{"self", t.value(finite(64))}}, finite(64).as(format));
    t.op("mul", {{"self", y}}, finite(64).range(-spread, spread));
    return t;
  };
  EXPECT_EQ(told(diff(run(DType::kF16, 1.0004), run(DType::kF32, 1))), "-");
  // but where both runs have the same formats, nothing was rounded away
  EXPECT_EQ(told(diff(run(DType::kF16, 1.0004), run(DType::kF16, 1))), "statistics | mul |  | forward | step 0 | amax");
}

TEST_F(Diff, compares_the_steps_that_both_runs_have) {
  const DiffResult result = diff(make({.steps = 6}), make({.steps = 4}));
  EXPECT_EQ(told(result), "-");
  EXPECT_EQ(result.steps_compared, 4U);
  EXPECT_EQ(result.steps_only_a, 2U);
  EXPECT_EQ(result.steps_only_b, 0U);
  EXPECT_EQ(result.a.last_step, 5U);
}

TEST_F(Diff, compares_loss_scale_and_skips_of_runs_without_ops) {
  const auto run = [](double loss, double scale, bool skipped) {
    TraceBuilder t;
    t.step(7);
    t.end_step(loss, scale, skipped);
    return t;
  };
  const TraceBuilder plain = run(1.5, 1024, false);
  EXPECT_EQ(told(diff(plain, run(2.5, 1024, false))), "loss |  |  | loss | step 7 | loss");
  EXPECT_EQ(told(diff(plain, run(std::nan(""), 1024, false))), "loss |  |  | loss | step 7 | loss");
  EXPECT_EQ(told(diff(plain, run(1.5, 1024, true))), "skip |  |  | update | step 7 | skipped");
  EXPECT_EQ(told(diff(plain, run(1.5, 512, false))), "scale |  |  | update | step 7 | scale");
  EXPECT_EQ(told(diff(plain, run(1.5, 1024, false))), "-");
}

TEST_F(Diff, says_when_runs_start_from_other_data) {
  TraceBuilder a, b;
  a.mark(TensorRole::kBatch, "images", a.value(finite(8)));
  b.mark(TensorRole::kBatch, "images", b.value(finite(8).range(-5, 5)));
  a.end_step(1);
  b.end_step(1);
  EXPECT_EQ(told(diff(a, b)), "statistics | <batch> | images | data | step 0 | amax");
}

TEST_F(Diff, finds_a_bad_result_of_an_op_that_the_other_run_has_not) {
  // given a logarithm of 0 in A, and a B that uses something else; what A masks on purpose is no difference
  const auto run = [](bool by_hand) {
    TraceBuilder t;
    auto x = t.value(finite(8).zeros(1));
    if (by_hand) t.in("head").op("masked_fill", {{"self", x}}, finite(8).neg_inf(2));
    t.in("<loss>", Phase::kLoss);
    t.op(by_hand ? "log" : "log_softmax", {{"self", x}}, by_hand ? finite(8).neg_inf(1) : finite(8));
    t.end_step(1);
    return t;
  };
  EXPECT_EQ(told(diff(run(true), run(false))), "badness | log | <loss> | loss | step 0 | ");
}

TEST_F(Diff, sees_numbers_that_became_zero_in_one_run) {
  const auto run = [](std::int64_t zeros) {
    TraceBuilder t;
    t.op("mul", {{"self", t.value(finite(100))}}, finite(100).zeros(zeros));
    return t;
  };
  EXPECT_EQ(told(diff(run(5), run(10))), "-");
  EXPECT_EQ(told(diff(run(60), run(10))), "statistics | mul |  | forward | step 0 | zero_share");
}

TEST_F(Diff, tells_of_damage_and_compares_what_is_left) {
  // given a trace whose middle is overwritten
  const std::string a = write(make({.steps = 400, .bad_from = 999}), 50),
                    b = write(make({.steps = 400, .bad_from = 395}), 50);
  const std::string file = find_attempts(a)->front().dir + "/000000.nht";
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) / 2));
    bytes.write("damage damage damage damage", 27);
  }
  const DiffResult result = diff_folders(a, b);
  EXPECT_EQ(result.a.status.code(), StatusCode::kDamaged);
  EXPECT_TRUE(result.a.health.damaged());
  EXPECT_TRUE(result.b.status.is_ok());
  EXPECT_EQ(told(result), "badness | mm | fc1 | forward | step 395 | badness");
}

TEST_F(Diff, does_not_depend_on_how_records_are_cut_into_batches) {
  const TraceBuilder a = make({.extra_cast = true, .bad_from = 2}), b = make({});
  const DiffResult whole = diff_folders(write(a), write(b)), cut = diff_folders(write(a, 1), write(b, 3));
  EXPECT_EQ(told(whole), told(cut));
  EXPECT_EQ(whole.counts, cut.counts);
}

TEST(Align, matches_the_longest_common_subsequence) {
  const std::vector<std::uint32_t> a = {1, 2, 3, 4, 5}, b = {1, 9, 3, 5, 5, 6};
  const Alignment aligned = align(a, b);
  EXPECT_TRUE(aligned.exact);
  EXPECT_EQ(aligned.b_of_a[0], 0);
  EXPECT_EQ(aligned.b_of_a[1], kUnmatched);
  EXPECT_EQ(aligned.b_of_a[2], 2);
  EXPECT_EQ(aligned.b_of_a[3], kUnmatched);
  EXPECT_TRUE(aligned.b_of_a[4] == 3 || aligned.b_of_a[4] == 4);
}

TEST(Align, finds_an_insertion_among_equal_entries_of_any_length) {
  // for every place at which an entry is put in
  const std::vector<std::uint32_t> a = {1, 2, 1, 3, 1, 2, 4};
  for (std::size_t place = 0; place <= a.size(); ++place) {
    std::vector<std::uint32_t> b = a;
    b.insert(b.begin() + static_cast<std::ptrdiff_t>(place), 7);
    const Alignment aligned = align(a, b), back = align(b, a);
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(aligned.b_of_a[i], static_cast<std::int32_t>(i < place ? i : i + 1)) << place;
    }
    EXPECT_EQ(back.b_of_a[place], kUnmatched);
  }
  EXPECT_TRUE(align({}, a).b_of_a.empty());
  EXPECT_EQ(align(a, {}).b_of_a, std::vector<std::int32_t>(a.size(), kUnmatched));
}

TEST_F(Diff, holds_no_more_of_a_step_than_a_block_however_many_results_its_ops_have) {
  // given one step of 100 ops, each with 8192 results, which a trace packs into next to nothing
  constexpr std::uint32_t kOps = 100, kResults = 8192;
  const std::string run = new_run();
  {
    auto writer = TraceWriter::create(run, RunInfo{});
    ASSERT_TRUE(writer) << writer.status().message();
    for (std::uint32_t i = 0; i < kOps; ++i) {
      RecordBatch batch;
      if (i == 0) batch.strings = {{1, "split"}};
      OpRecord op;
      op.seq = i;
      op.op = 1;
      op.output_count = kResults;
      batch.ops = {op};
      batch.outputs.assign(kResults, OpArg{1, 0, ArgRole::kRead});
      ASSERT_TRUE((*writer)->write(batch));
    }
    ASSERT_TRUE((*writer)->close());
  }
  auto attempts = find_attempts(run);
  ASSERT_TRUE(attempts);
  // when read block by block
  DiffStream stream(attempts->front());
  std::size_t rows = 0, most = 0;
  while (const auto block = stream.next()) {
    rows += block->rows.size();
    most = std::max(most, block->outputs.size());
  }
  // then nothing is missing, and no block holds it all
  EXPECT_TRUE(stream.status()) << stream.status().message();
  EXPECT_EQ(rows, kOps);
  EXPECT_LE(most, (1u << 19) + kResults);
}

// As level live leaves it: a summary a step, and the ops of a bad one.
TraceBuilder summaries(std::uint32_t steps, std::uint32_t bad_from) {
  TraceBuilder t;
  for (std::uint32_t step = 0; step < steps; ++step) {
    t.step(step);
    const bool bad = step >= bad_from;
    if (step == bad_from) {
      const auto w = t.value(finite(64).shape({8, 8}));
      t.mark(TensorRole::kParameter, "fc1.weight", w);
      const auto y = t.in("fc1").op("mm", {{"self", w}}, finite(64).shape({8, 8}).inf(1).first_at(3));
      t.mark(TensorRole::kLoss, "loss", y);
    }
    t.health(bad ? 1u << static_cast<unsigned>(TensorRole::kLoss) : 0, bad ? "loss" : "");
    t.end_step(bad ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  }
  return t;
}

TEST_F(Diff, of_two_levels_compares_what_both_have_and_says_so) {
  TraceBuilder full;
  for (std::uint32_t step = 0; step < 6; ++step) {
    full.step(step);
    const bool bad = step >= 3;
    const auto w = full.value(finite(64).shape({8, 8}));
    full.mark(TensorRole::kParameter, "fc1.weight", w);
    const Numbers out = finite(64).shape({8, 8});
    full.in("fc1").op("mm", {{"self", w}}, bad ? out.inf(1).first_at(3) : out);
    full.in("fc1.weight", Phase::kOptimizer).op("add_", {{"self", w}}, bad ? out.nan(1) : out);
    full.end_step(bad ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  }
  const auto compare = [&](std::uint32_t bad_from, const std::string& level) {
    return diff_folders(write(summaries(6, bad_from), 0, level), write(full, 0, "ops"));
  };
  const DiffResult same = compare(3, "live");
  EXPECT_EQ(told(same), "-");
  EXPECT_TRUE(same.levels_differ);
  EXPECT_EQ(same.steps_compared, 6u);
  EXPECT_EQ(same.steps_with_ops, 1u);
  EXPECT_EQ(same.ops_compared, 1u);
  EXPECT_GT(same.ops_unshared_b, 0u);
  // a run that is bad elsewhere is still told apart
  EXPECT_EQ(told(compare(1, "live")), "badness | mm | fc1 | forward | step 1 | badness");
  EXPECT_EQ(told(compare(99, "live")), "loss |  |  | loss | step 3 | loss");
  // at one level, what only one trace has is a difference
  EXPECT_FALSE(compare(3, "ops").levels_differ);
  EXPECT_NE(told(compare(3, "ops")), "-");
}

TEST(Align, matches_occurrences_where_sequences_differ_too_much) {
  // given 2000 entries of which every other one is foreign
  std::vector<std::uint32_t> a, b;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    a.push_back(i % 2 == 0 ? i : 1'000'000 + i);
    b.push_back(i % 2 == 0 ? i : 2'000'000 + i);
  }
  const Alignment aligned = align(a, b);
  EXPECT_FALSE(aligned.exact);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(aligned.b_of_a[i], i % 2 == 0 ? static_cast<std::int32_t>(i) : kUnmatched);
  }
}

}  // namespace
}  // namespace nanhunt::analyze
