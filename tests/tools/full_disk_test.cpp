// SPDX-License-Identifier: Apache-2.0
// A disk that fills up while a run is recorded: training goes on, says so once, and keeps its own status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// No file that a child of this process writes may grow past `bytes` while it lives.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old_);
    rlimit now = old_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~ScopedFileLimit() { setrlimit(RLIMIT_FSIZE, &old_); }
  ScopedFileLimit(const ScopedFileLimit&) = delete;
  ScopedFileLimit& operator=(const ScopedFileLimit&) = delete;

 private:
  rlimit old_{};
};

TEST(FullDisk, train_goes_on_says_so_once_and_keeps_its_own_status) {
  const std::string run = make_folder() + "/run";
  Outcome train;
  {
    const ScopedFileLimit full(12'000);
    train =
        run_nanhunt({"train", "adam-eps", "--steps", "400", "--level", "ops", "--no-verify", "--json", "--out", run});
  }
  EXPECT_EQ(train.status, 0) << train.err;
  EXPECT_THAT(train.err, HasSubstr("incomplete"));
  EXPECT_EQ(train.err.find("incomplete"), train.err.rfind("incomplete")) << train.err;
  const json outcome = json::parse(train.out);
  EXPECT_EQ(outcome["steps"], 400);
  const std::uint64_t dropped = outcome["dropped_ops"], recorded = outcome["ops"];
  EXPECT_GT(dropped, 0u);
  // then what is in the trace and what was dropped add up
  const json info = json::parse(run_nanhunt({"info", run, "--json"}).out);
  EXPECT_EQ(info["attempts"][0]["contents"]["ops"].get<std::uint64_t>() + dropped, recorded);
}

TEST(FullDisk, a_trace_with_room_drops_nothing) {
  const std::string run = make_folder() + "/run";
  const Outcome train = run_nanhunt({"train", "adam-eps", "--steps", "40", "--no-verify", "--json", "--out", run});
  EXPECT_EQ(train.status, 0);
  EXPECT_EQ(train.err, "");
  EXPECT_EQ(json::parse(train.out)["dropped_ops"], 0);
}

TEST(FullDisk, a_limit_on_the_trace_is_kept_and_what_went_is_said) {
  const std::string run = make_folder() + "/run";
  const Outcome train =
      run_nanhunt({"train", "adam-eps", "--steps", "60", "--no-verify", "--max-trace-mb", "5", "--json", "--out", run});
  EXPECT_EQ(train.status, 0) << train.err;
  const json attempt = json::parse(run_nanhunt({"info", run, "--json"}).out)["attempts"][0];
  EXPECT_LE(attempt["health"]["bytes"], 5'000'000);
  EXPECT_EQ(run_nanhunt({"train", "adam-eps", "--max-trace-mb", "1", "--out", run}).status, 2);
}

}  // namespace
}  // namespace nanhunt::testing_tools
