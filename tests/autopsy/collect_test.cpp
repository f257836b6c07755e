// SPDX-License-Identifier: Apache-2.0
// Run folders: which files are read, what is left out, what is joined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "src/autopsy/answer.h"
#include "src/autopsy/collect.h"
#include "tests/autopsy/log_files.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::autopsy_testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Collect : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view bytes) {
    fs::create_directories(fs::path(dir_.path(name)).parent_path());
    std::ofstream(dir_.path(name), std::ios::binary) << bytes;
  }
  autopsy::Evidence collect() {
    auto evidence = autopsy::collect_evidence(dir_.path());
    EXPECT_TRUE(evidence);
    autopsy::join_series(*evidence);
    return std::move(*evidence);
  }
  testing_support::TempDir dir_;
};

TEST_F(Collect, event_files_of_one_folder_are_one_curve_with_a_restart) {
  write("runs/events.out.tfevents.1", scalar_event("loss", 1, 1.f) + scalar_event("loss", 2, 1.f));
  write("runs/events.out.tfevents.2", scalar_event("loss", 2, 1.f) + scalar_event("loss", 3, 1.f));
  write("eval/events.out.tfevents.1", scalar_event("loss", 9, 1.f));
  const auto evidence = collect();
  ASSERT_THAT(evidence.series, SizeIs(2));
  EXPECT_THAT(evidence.series[1].points, SizeIs(4));
  EXPECT_THAT(evidence.series[1].restarts, ::testing::ElementsAre(2));
}

TEST_F(Collect, runs_of_one_folder_that_each_begin_anew_are_not_one_that_was_resumed) {
  std::vector<std::string> good, bad;
  for (int step = 0; step < 20; ++step) good.push_back(wandb_history(step, {{"loss", "2"}}));
  for (int step = 0; step < 3; ++step) bad.push_back(wandb_history(step, {{"loss", step == 2 ? "NaN" : "2"}}));
  write("wandb/offline-run-1/run-1.wandb", wandb_file(good));
  write("wandb/offline-run-2/run-2.wandb", wandb_file(bad));
  const auto evidence = collect();
  EXPECT_THAT(evidence.series, SizeIs(2));
  EXPECT_THAT(guesses_of(evidence), ::testing::ElementsAre("first_step"));
}

TEST_F(Collect, of_a_large_log_the_end_is_read_as_well) {
  std::string lines;
  for (int step = 0; lines.size() < (140u << 20); ++step)
    lines += "step " + std::to_string(step) + " loss 2 " + std::string(400000, '.') + "\n";
  write("stdout.log", lines + "step 999999 loss nan\n");
  const auto evidence = collect();
  const autopsy::Series* loss = find_series(evidence, "loss");
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->points.back().at, 999999);
  EXPECT_EQ(loss->points.front().at, 0);
  EXPECT_THAT(evidence.sources[0].damage, HasSubstr("in part"));
  const autopsy::Judgement judgement = autopsy::judge(evidence);
  ASSERT_EQ(judgement.outcome, autopsy::Outcome::kBadNumbers);
  EXPECT_EQ(judgement.guesses[0].confidence, autopsy::Confidence::kPossible);  // what came before was not read
}

TEST_F(Collect, a_log_just_below_the_limit_is_read_as_a_whole) {
  std::string lines;
  for (int step = 0; lines.size() < (100u << 20); ++step)
    lines += "step " + std::to_string(step) + " loss 2 " + std::string(400000, '.') + "\n";
  const auto count = static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
  write("stdout.log", lines);
  const auto evidence = collect();
  EXPECT_THAT(find_series(evidence, "loss")->points, SizeIs(count));
  EXPECT_EQ(evidence.sources[0].damage, "");
}

TEST_F(Collect, what_lies_beside_weights_and_one_shard_of_several_are_no_checkpoints) {
  for (const char* name : {"checkpoint-400/rng_state_0.pth", "checkpoint-400/model.safetensors", "rng_state_0.pth",
                           "model-00001-of-00002.safetensors", "optimizer_300.pt", "step_200.pt"}) {
    write(name, "");
  }
  const auto evidence = collect();
  std::vector<std::string> names;
  for (const autopsy::Checkpoint& one : evidence.checkpoints) names.push_back(one.path);
  EXPECT_THAT(names, ::testing::ElementsAre("checkpoint-400", "step_200.pt"));
}

TEST_F(Collect, a_compressed_log_is_named_and_not_read) {
  write("stdout.log.gz", "step 1 loss nan\n");
  write("model.bin.gz", "no log");
  const auto evidence = collect();
  ASSERT_THAT(evidence.sources, SizeIs(1));
  EXPECT_THAT(evidence.sources[0].damage, HasSubstr("unpack it"));
  EXPECT_EQ(autopsy::judge(evidence).outcome, autopsy::Outcome::kDamaged);
}

TEST_F(Collect, links_are_not_followed_and_pipes_are_not_waited_for) {
  write("real/m.jsonl", "{\"step\":1,\"loss\":NaN}\n");
  testing_support::TempDir run;
  fs::create_directory_symlink(dir_.path("real"), run.path("link"));
  fs::create_symlink(dir_.path("real/m.jsonl"), run.path("m.jsonl"));
  ASSERT_EQ(std::system(("mkfifo '" + run.path("a.log") + "'").c_str()), 0);
  const auto evidence = autopsy::collect_evidence(run.path());
  ASSERT_TRUE(evidence);
  EXPECT_THAT(evidence->sources, IsEmpty());
  EXPECT_FALSE(autopsy::collect_evidence(run.path("a.log")));
}

TEST_F(Collect, a_checkpoint_whose_own_log_is_bad_is_known_as_such) {
  write("checkpoint-4/trainer_state.json", R"({"log_history": [{"step": 4, "loss": 1.0}]})");
  write("checkpoint-8/trainer_state.json", R"({"log_history": [{"step": 4, "loss": 1.0}, {"step": 8, "loss": NaN}]})");
  write("epoch=1-step=6.ckpt", "");
  const auto evidence = collect();
  ASSERT_THAT(evidence.checkpoints, SizeIs(3));
  EXPECT_FALSE(evidence.checkpoints[0].has_bad_number);
  EXPECT_TRUE(evidence.checkpoints[1].has_bad_number);
  EXPECT_EQ(evidence.checkpoints[2].step, 6u);
}

TEST_F(Collect, folders_below_the_sixth_are_not_read) {
  write("1/2/3/4/5/6/m.jsonl", "{\"step\":1,\"loss\":1}\n");
  write("1/2/3/4/5/6/7/m.jsonl", "{\"step\":1,\"loss\":1}\n");
  EXPECT_THAT(collect().sources, SizeIs(1));
}

TEST_F(Collect, the_answer_is_short_and_cannot_steer_a_terminal) {
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += "{\"step\":" + std::to_string(i) + ",\"a\x1b[31m\u202e/loss\":2}\n";
  write("m.jsonl", lines + "{\"step\":10,\"a\x1b[31m\u202e/loss\":NaN}\n");
  const auto evidence = collect();
  const std::string text = autopsy::answer_text(evidence, autopsy::judge(evidence), {}, false, 80);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("\u202e"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("nanhunt run --out nanhunt-run --"));
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
