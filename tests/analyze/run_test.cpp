// SPDX-License-Identifier: Apache-2.0
// analyze_run: from a run folder on disk, several attempts and ranks, damaged or not there at all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

class Run : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           ("nanhunt-analyze-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string write(const TraceBuilder& trace, std::uint32_t rank = 0) {
    RunInfo info;
    info.rank = rank;
    info.world_size = 2;
    info.framework = "nanhunt-engine";
    auto writer = TraceWriter::create(dir_.string(), info);
    EXPECT_TRUE(writer.is_ok()) << writer.status().message();
    for (const RecordBatch& batch : trace.batches(16)) EXPECT_TRUE((*writer)->write(batch).is_ok());
    EXPECT_TRUE((*writer)->close().is_ok());
    return (*writer)->attempt_dir();
  }

  fs::path dir_;
};

TraceBuilder run_with(std::uint32_t bad_step) {
  TraceBuilder t;
  for (std::uint32_t step = 0; step < 6; ++step) {
    const bool bad = step == bad_step;
    const Handle x = t.value(finite().range(0, bad ? 100 : 1));
    t.mark(MarkKind::kLoss, "loss", t.in("fc1").op("exp", {{"self", x}}, bad ? finite().inf(1) : finite()));
    t.end_step();
  }
  return t;
}

TEST_F(Run, reads_what_was_written) {
  write(run_with(3));
  const Result<Analysis> a = analyze_run(dir_.string());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_EQ(table(*a), "overflow | exp | fc1 | forward | step 3 | appear | observed\n");
  EXPECT_EQ(a->ranks.size(), 1u);
  EXPECT_TRUE(a->coverage.clean_end);
  EXPECT_EQ(a->coverage.not_modelled.size(), 3u);
}

TEST_F(Run, takes_the_newest_attempt) {
  write(run_with(3));
  write(run_with(99));
  const Result<Analysis> a = analyze_run(dir_.string());
  ASSERT_TRUE(a.is_ok());
  EXPECT_EQ(table(*a), "clean\n");
  EXPECT_EQ(a->ranks[0].attempt, 1u);
}

TEST_F(Run, puts_ranks_together_with_the_earliest_fault_first) {
  write(run_with(4), 0);
  write(run_with(2), 1);
  const Result<Analysis> a = analyze_run(dir_.string());
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

TEST_F(Run, analyses_what_is_left_of_a_damaged_trace_and_says_so) {
  const fs::path attempt = write(run_with(99));
  const fs::path file = attempt / "000000.nht";
  const auto size = fs::file_size(file);
  {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(size / 2));
    f.write("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  }
  const Result<Analysis> a = analyze_run(dir_.string());
  ASSERT_TRUE(a.is_ok()) << a.status().message();
  EXPECT_TRUE(a->ranks.at(0).health.damaged());
  EXPECT_GT(a->coverage.chunks_lost, 0u);
}

TEST_F(Run, that_is_not_there_or_empty_is_an_error_with_a_message) {
  const Result<Analysis> missing = analyze_run((dir_ / "nowhere").string());
  ASSERT_FALSE(missing.is_ok());
  EXPECT_FALSE(missing.status().message().empty());
  fs::create_directories(dir_);
  EXPECT_FALSE(analyze_run(dir_.string()).is_ok());
}

}  // namespace
}  // namespace nanhunt
