// SPDX-License-Identifier: Apache-2.0
// train on several ranks: in one process, and as processes of mpirun where MPI is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RanksInOneProcess, leave_a_trace_each_and_check_names_the_one_where_it_began) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "ddp-one-rank-overflows", "--out", run});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("Of 4 ranks"));
  EXPECT_THAT(trained.out, HasSubstr("the overflowing layer outside autocast, in fp32: cured it"));
  for (int rank = 0; rank < 4; ++rank) {
    const json info = json::parse(read_file(run + "/rank-0000" + std::to_string(rank) + "/attempt-0/run.json"));
    EXPECT_EQ(info["rank"], rank);
    EXPECT_EQ(info["world_size"], 4);
  }
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.out, AllOf(HasSubstr("scaler_collapse: mm in fc1 overflows fp16"),
                               HasSubstr(", phase forward, step 6, rank 2")));
}

class RanksOverMpi : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(NANHUNT_BIN_DIR "/libnanhunt_mpi.so")) {
      GTEST_SKIP() << "built without MPI: tools/setup installs libopenmpi-dev and openmpi-bin";
    }
    if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "no mpirun: tools/setup installs openmpi-bin";
  }
};

TEST_F(RanksOverMpi, train_the_same_bits_as_in_one_process_and_are_told_the_same) {
  json told[2], verdicts[2];
  for (const bool mpi : {false, true}) {
    const std::string run = make_folder() + "/run";
    std::vector<std::string> words = {"train", "ddp-one-rank-overflows", "--level", "ops", "--out", run, "--json"};
    if (mpi) words.insert(words.end(), {"--ranks", "4"});
    const Outcome trained = run_nanhunt(words);
    ASSERT_EQ(trained.status, 0) << trained.err;
    told[mpi] = json::parse(trained.out);
    told[mpi].erase("trace");
    verdicts[mpi] = json::parse(run_nanhunt({"check", run, "--json"}).out);
  }
  EXPECT_EQ(told[0], told[1]);
  EXPECT_EQ(verdicts[0], verdicts[1]);
  EXPECT_EQ(verdicts[1]["finding"]["rank"], 2);
}

TEST_F(RanksOverMpi, take_their_rows_of_any_scenario) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "bad-batch", "--ranks", "2", "--out", run, "--no-verify"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(run_nanhunt({"check", run}).out,
              AllOf(HasSubstr("bad_input: The batch tensor inputs of step 7 holds 1 NaN of 2048"),
                    HasSubstr(", phase data, step 7, rank 1")));
}

TEST_F(RanksOverMpi, that_are_killed_end_the_others_within_a_minute_and_it_is_said) {
  const std::string run = make_folder() + "/run";
  // given a run that would last for hours
  Outcome trained;
  std::thread running([&] {
    trained = run_nanhunt({"train", "predivide-underflow-fixed", "--ranks", "4", "--steps",
                           "1000000", "--max-trace-mb", "10", "--out", run});
  });
  const std::string info = run + "/rank-00003/attempt-0/run.json";
  for (int i = 0; i < 600 && !std::filesystem::exists(info); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  // when one rank is killed
  const auto killed = std::chrono::steady_clock::now();
  const json of_rank = json::parse(read_file(info), nullptr, /*allow_exceptions=*/false);
  const bool there = of_rank.is_object() && of_rank["pid"].is_number_integer();
  if (there) ::kill(of_rank["pid"].get<pid_t>(), SIGKILL);
  running.join();
  // then
  ASSERT_TRUE(there) << trained.err;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(60));
  EXPECT_NE(trained.status, 0);
  EXPECT_THAT(trained.err, HasSubstr("a rank has ended before its work was done, and the others with it"));
  // and what they had recorded can be read
  EXPECT_THAT(run_nanhunt({"check", run}).out, ::testing::AnyOf(HasSubstr("no clean end"), HasSubstr("has not ended")));
}

TEST_F(RanksOverMpi, that_cannot_share_a_batch_say_so_and_end) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "bad-batch", "--ranks", "3", "--out", run});
  EXPECT_EQ(trained.status, 7);
  EXPECT_THAT(trained.err, HasSubstr("[batch] expected rows that 3 ranks can share equally, got fp32 [64, 64]"));
}

TEST(RanksWithoutMpirun, are_told_what_to_install) {
  const std::string folder = make_folder();
  const std::string command = "PATH=/nonexistent " NANHUNT_BIN_DIR "/nanhunt train bad-batch --ranks 2 --out " + folder +
                              "/run 2> " + folder + "/said";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(read_file(folder + "/said"), HasSubstr("Install openmpi-bin and libopenmpi-dev (tools/setup does)"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
