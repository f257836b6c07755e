// SPDX-License-Identifier: Apache-2.0
// digest.json of a rank that records: in the background while it goes on, and once more when it is closed.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/c_api/adapter_fixture.h"
#include "tests/support/eventually.h"

namespace nanhunt::c_api_tests {
namespace {

class Digests : public CAdapter {
 protected:
  std::string path() const { return folder_ + "/digest.json"; }
  bool is_there() const { return std::filesystem::exists(path()); }
  nlohmann::json digest() const {
    std::ifstream in(path());
    return nlohmann::json::parse(in, nullptr, false);
  }
  void train_step(std::uint32_t step) {
    nanhunt_step row{};
    row.struct_size = sizeof row;
    row.step = step;
    row.loss = row.lr = 0.5;
    row.scale = 1;
    EXPECT_EQ(nanhunt_record_step(recorder_, &row), NANHUNT_OK);
  }
};

TEST_F(Digests, are_written_while_the_rank_goes_on_and_once_more_at_its_end) {
  train_step(0);
  EXPECT_FALSE(is_there());
  ASSERT_EQ(nanhunt_recorder_write_digest(recorder_), NANHUNT_OK);
  ASSERT_TRUE(testing_support::eventually([&] { return is_there(); }));
  EXPECT_EQ(digest()["ended"], false);
  EXPECT_EQ(digest()["last_step"], 0);
  train_step(1);
  ASSERT_EQ(nanhunt_recorder_write_digest(recorder_), NANHUNT_OK);
  ASSERT_TRUE(testing_support::eventually([&] { return digest()["last_step"] == 1; }));
  train_step(2);
  close_and_read();
  EXPECT_EQ(digest()["ended"], true);
  EXPECT_EQ(digest()["last_step"], 2);
}

TEST_F(Digests, of_a_rank_that_asks_for_none_are_not_there) {
  train_step(0);
  close_and_read();
  EXPECT_FALSE(is_there());
}

TEST_F(Digests, of_a_rank_that_cannot_write_are_left_out_and_the_run_goes_on) {
  std::filesystem::create_directory(path());
  EXPECT_EQ(nanhunt_recorder_write_digest(recorder_), NANHUNT_OK);
  train_step(0);
  close_and_read();
  EXPECT_TRUE(std::filesystem::is_directory(path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 3) << "run.json, 000000.nht and that folder";
}

TEST_F(Digests, are_not_a_forked_childs_to_write_or_to_wait_for) {
  ASSERT_EQ(nanhunt_recorder_write_digest(recorder_), NANHUNT_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    nanhunt_recorder_write_digest(recorder_);
    nanhunt_recorder_close(recorder_);
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  train_step(0);
  close_and_read();
  EXPECT_EQ(digest()["last_step"], 0);
}

TEST_F(Digests, of_no_recorder_are_refused) {
  EXPECT_EQ(nanhunt_recorder_write_digest(nullptr), NANHUNT_USAGE);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
