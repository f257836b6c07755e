// SPDX-License-Identifier: Apache-2.0
// analyze_run: from a run folder on disk, several attempts and ranks, damaged or not there at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

class Run : public testing::Test {
 protected:
  std::string write(const TraceBuilder& trace, std::uint32_t rank = 0,
                    const std::string& framework = "nanhunt-engine") {
    RunInfo info;
    info.rank = rank;
    info.world_size = world_;
    info.framework = framework;
    info.run = run_;
    auto writer = TraceWriter::create(dir_.path(), info);
    EXPECT_TRUE(writer.is_ok()) << writer.status().message();
    for (const RecordBatch& batch : trace.batches(16)) EXPECT_TRUE((*writer)->write(batch).is_ok());
    EXPECT_TRUE((*writer)->close().is_ok());
    return (*writer)->attempt_dir();
  }

  TempDir dir_;
  std::uint32_t world_ = 1;  // ranks, as run.json says
  std::string run_;          // that its attempts are of; "": each of its own
};

TraceBuilder run_with(std::uint32_t bad_step) {
  TraceBuilder t;
  for (std::uint32_t step = 0; step < 6; ++step) {
    const bool bad = step == bad_step;
    const Handle x = t.value(finite().range(0, bad ? 100 : 1));
    t.mark(TensorRole::kLoss, "loss", t.in("fc1").op("exp", {{"self", x}}, bad ? finite().inf(1) : finite()));
    t.end_step();
  }
  return t;
}

TEST_F(Run, reads_what_was_written) {
  write(run_with(3));
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(table(*a), "overflow | exp | fc1 | forward | step 3 | appear | observed\n");
  EXPECT_EQ(a->ranks.size(), 1u);
  EXPECT_TRUE(a->coverage.clean_end);
}

TEST_F(Run, of_the_bundled_engine_says_what_is_not_modelled) {
  write(run_with(3), 0, "nanhunt-engine 0.1.0");
  EXPECT_EQ(analyze_run(dir_.path())->coverage.not_modelled.size(), 3u);
}

TEST_F(Run, of_another_framework_has_nothing_that_is_not_modelled) {
  write(run_with(3), 0, "torch 2.13.0");
  EXPECT_TRUE(analyze_run(dir_.path())->coverage.not_modelled.empty());
}

TEST_F(Run, takes_the_newest_attempt) {
  write(run_with(3));
  write(run_with(99));
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok());
  EXPECT_EQ(table(*a), "clean\n");
  EXPECT_EQ(a->ranks[0].attempt, 1u);
}

// Two forwards of a process that trains afterwards. The first is given NaN, or its model makes an infinity.
TraceBuilder forwards(bool bad_data) {
  TraceBuilder t;
  t.note("forwards before the training began, which are an attempt of their own", 1);
  for (int step = 0; step < 2; ++step) {
    const Handle x = t.value(bad_data && step == 0 ? finite().nan(1) : finite().range(0, 100));
    t.in("", Phase::kData);
    t.mark(TensorRole::kBatch, "input 0", x);
    const Numbers bad = bad_data ? finite().nan(1) : finite(1).inf(1);
    t.mark(TensorRole::kOutput, "", t.in("fc1").op("exp", {{"self", x}}, step == 0 ? bad : finite(1)));
    t.give_up(step == 0 ? StepEnding::kForward : StepEnding::kEnd);
  }
  return t;
}

TEST_F(Run, of_which_data_were_bad_before_a_sound_training_is_clean_and_says_so) {
  run_ = "one";
  write(forwards(true));
  write(run_with(99));
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok());
  EXPECT_EQ(a->verdict.status, VerdictStatus::kClean) << table(*a);
  ASSERT_EQ(a->findings.size(), 1u);
  EXPECT_EQ(a->findings[0].cls, FindingClass::kBadInput);
  EXPECT_EQ(a->findings[0].severity, Severity::kInfo);
  EXPECT_THAT(a->findings[0].evidence, testing::Contains(testing::HasSubstr("before the training began")));
}

TEST_F(Run, is_faulty_where_its_model_was_bad_before_the_training_or_the_training_is) {
  run_ = "one";
  write(forwards(false));
  write(run_with(99));
  const Result<Analysis> of_model = analyze_run(dir_.path());
  ASSERT_TRUE(of_model.is_ok());
  EXPECT_EQ(of_model->verdict.status, VerdictStatus::kFault) << table(*of_model);
  write(forwards(true));
  write(run_with(3));
  const Result<Analysis> of_both = analyze_run(dir_.path());
  ASSERT_TRUE(of_both.is_ok());
  EXPECT_EQ(of_both->verdict.status, VerdictStatus::kFault) << table(*of_both);
}

TEST_F(Run, puts_ranks_together_with_the_earliest_fault_first) {
  write(run_with(4), 0);
  write(run_with(2), 1);
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok());
  ASSERT_EQ(a->findings.size(), 2u);
  EXPECT_EQ(a->findings[0].rank, 1u);
  EXPECT_EQ(a->findings[0].place.step, 2u);
  EXPECT_EQ(a->findings[0].id, "F1");
  EXPECT_EQ(a->findings[1].rank, 0u);
  EXPECT_EQ(a->ranks.size(), 2u);
  EXPECT_EQ(a->coverage.steps, 6u);
  EXPECT_EQ(a->coverage.ops, 12u);
}

void make_unreadable(const fs::path& attempt) { std::ofstream(attempt / "000000.nht") << "no trace"; }

TEST_F(Run, that_is_clean_where_it_can_be_read_is_inconclusive_when_a_rank_cannot_be_read) {
  write(run_with(99), 0);
  const fs::path other = write(run_with(99), 1);
  ASSERT_EQ(analyze_run(dir_.path())->verdict.status, VerdictStatus::kClean);
  make_unreadable(other);
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(a->verdict.status, VerdictStatus::kInconclusive);
  EXPECT_THAT(a->verdict.headline, testing::HasSubstr("1 of 2 ranks"));
  EXPECT_THAT(a->coverage.unwatched, testing::Contains(testing::StartsWith("Rank 1: ")));
  EXPECT_EQ(a->coverage.chunks_lost, 1u);
  EXPECT_EQ(a->ranks.size(), 1u);
}

TEST_F(Run, that_is_clean_on_one_rank_is_inconclusive_when_another_rank_recorded_nothing) {
  write(run_with(99), 0);
  write(TraceBuilder(), 1);
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(a->verdict.status, VerdictStatus::kInconclusive);
  EXPECT_THAT(a->coverage.unwatched, testing::Contains("Rank 1: nothing was recorded."));
  EXPECT_EQ(a->coverage.chunks_lost, 0u) << "nothing was damaged";
}

TEST_F(Run, with_a_fault_is_faulty_whatever_the_rank_that_cannot_be_read_did) {
  make_unreadable(write(run_with(99), 0));
  write(run_with(3), 1);
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(a->verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(table(*a), "overflow | exp | fc1 | forward | step 3 | appear | inferred\n")
      << "that rank may have been the first";
  EXPECT_THAT(a->coverage.unwatched, testing::Contains(testing::StartsWith("Rank 0: ")));
}

TEST_F(Run, of_which_no_rank_can_be_read_is_an_error) {
  make_unreadable(write(run_with(3), 0));
  make_unreadable(write(run_with(3), 1));
  EXPECT_EQ(analyze_run(dir_.path()).status().code(), StatusCode::kUnreadable);
}

TEST_F(Run, is_judged_by_its_other_ranks_when_the_folder_of_one_cannot_be_listed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may list every folder";
  // given a fault in rank 0, and a rank 1 whose folder nobody may read
  write(run_with(3), 0);
  const fs::path locked = fs::path(write(run_with(99), 1)).parent_path();
  fs::permissions(locked, fs::perms::none);
  const Result<Analysis> a = analyze_run(dir_.path());
  fs::permissions(locked, fs::perms::owner_all);
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(a->findings.size(), 1u);
  EXPECT_THAT(a->coverage.unwatched, testing::Contains(testing::StartsWith("Rank 1: ")));
}

TEST_F(Run, says_how_many_of_its_ranks_are_not_there_at_all) {
  const std::string absent =
      "1 of the run's 2 ranks: there is no trace of them here, so where badness began is inferred.";
  world_ = 2;
  write(run_with(99), 0);
  EXPECT_THAT(analyze_run(dir_.path())->coverage.unwatched, testing::Contains(absent));
  write(run_with(99), 1);
  EXPECT_THAT(analyze_run(dir_.path())->coverage.unwatched, testing::Not(testing::Contains(absent)));
}

TEST_F(Run, counts_a_rank_whose_run_json_claims_to_be_another) {
  // given a rank without a fault, and a copy of its run.json in the folder of one with a fault
  const fs::path clean = write(run_with(99), 0), faulty = write(run_with(3), 1);
  fs::copy_file(clean / "run.json", faulty / "run.json", fs::copy_options::overwrite_existing);
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  ASSERT_EQ(a->ranks.size(), 2u);
  ASSERT_EQ(a->findings.size(), 1u);
  EXPECT_EQ(a->findings[0].rank, 1u);
}

TEST_F(Run, analyses_what_is_left_of_a_damaged_trace_and_says_so) {
  const fs::path attempt = write(run_with(99));
  const fs::path file = attempt / "000000.nht";
  const auto size = fs::file_size(file);
  {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(size / 2));
    f.write("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  }
  const Result<Analysis> a = analyze_run(dir_.path());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_TRUE(a->ranks.at(0).health.damaged());
  EXPECT_GT(a->coverage.chunks_lost, 0u);
}

TEST_F(Run, salvaged_from_a_damaged_and_killed_one_lacks_what_that_one_lacked) {
  RunInfo info;
  info.options = {{"salvaged", "chunks lost 2, rows lost 30, bytes skipped 400, no clean end"}};
  TraceHealth whole;
  whole.clean_end = true;
  const Coverage copy = Analyzer::make()->finish(info, whole).coverage;
  EXPECT_EQ(copy.chunks_lost, 2u);
  EXPECT_FALSE(copy.clean_end);
  const Coverage original = Analyzer::make()->finish(RunInfo{}, whole).coverage;
  EXPECT_EQ(original.chunks_lost, 0u);
  EXPECT_TRUE(original.clean_end);
}

TEST_F(Run, that_is_not_there_or_empty_is_an_error_with_a_message) {
  const Result<Analysis> missing = analyze_run(dir_.path("nowhere"));
  ASSERT_FALSE(missing.is_ok());
  EXPECT_FALSE(missing.status().message().empty());
  EXPECT_FALSE(analyze_run(dir_.path()).is_ok());
}

}  // namespace
}  // namespace nanhunt
