// SPDX-License-Identifier: Apache-2.0
// A thousand damaged logs over all formats: each is read and judged to an answer.
#include <gtest/gtest.h>

#include <span>

#include "src/autopsy/answer.h"
#include "tests/autopsy/log_files.h"
#include "tests/trace/damage/mutator.h"

namespace nanhunt::autopsy_testing {
namespace {

std::vector<std::pair<std::string, std::string>> good_files() {
  std::string events, jsonl, csv = "epoch,step,train_loss,grad_norm\n", text = "$ python train.py\n",
                             state = "{\"log_history\": [";
  std::vector<std::string> records;
  for (int step = 0; step < 40; ++step) {
    const std::string n = std::to_string(step), value = step > 30 ? "NaN" : "1.5";
    events += scalar_event("train/loss", step, step > 30 ? std::numeric_limits<float>::quiet_NaN() : 1.5f);
    records.push_back(wandb_history(step, {{"train/loss", value}, {"lr", "0.1"}}));
    jsonl += "{\"step\": " + n + ", \"loss\": " + value + "}\n";
    csv += "0," + n + "," + value + ",1.0\n";
    text += "step " + n + " loss " + value + " loss_scale 1024\n";
    state += std::string(step == 0 ? "" : ",") + "{\"step\": " + n + ", \"loss\": " + value + ", \"grad_norm\": 1.0}";
  }
  records.push_back(std::string(bytes_field(26, bytes_field(6, "train.py") + bytes_field(5, "--x"))));
  text +=
      "Traceback (most recent call last):\n  File \"t.py\", line 3, in f\nRuntimeError: Function 'LogBackward0' "
      "returned nan values\n";
  return {{"events.out.tfevents.1", events},
          {"run-1.wandb", wandb_file(records)},
          {"m.jsonl", jsonl},
          {"m.csv", csv},
          {"a.log", text},
          {"trainer_state.json", state + "]}"},
          {"config.yaml", "lr: 0.1\nx:\n  value: 3\n"},
          {"wandb-metadata.json", "{\"program\": \"t.py\", \"args\": [\"a\", \"b\"]}"}};
}

TEST(AutopsyMutation, a_thousand_damaged_logs_are_read_to_an_answer) {
  trace_testing::Mutator mutator(9);
  const auto files = good_files();
  for (int round = 0; round < 1000; ++round) {
    const auto& [name, good] = files[static_cast<std::size_t>(round) % files.size()];
    const auto view = std::as_bytes(std::span(good));
    trace_testing::Bytes bytes(view.begin(), view.end());
    mutator.mutate(bytes);
    const autopsy::Evidence evidence = evidence_of(name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::size_t points = 0;
    for (const autopsy::Series& series : evidence.series) points += series.points.size();
    EXPECT_LE(points, bytes.size());
    const autopsy::Judgement judgement = autopsy::judge(evidence);
    EXPECT_FALSE(autopsy::answer_text(evidence, judgement, {}, false, 100).empty());
    EXPECT_FALSE(autopsy::answer_json("run", evidence, judgement, {}, 0).empty());
  }
}

// The framing is right, the messages in it are not: what a checksum cannot keep out.
TEST(AutopsyMutation, damaged_messages_in_sound_frames_are_read_to_an_answer) {
  trace_testing::Mutator mutator(10);
  const std::string history = wandb_history(7, {{"train/loss", "{\"loss\": NaN}"}});
  const std::string event = scalar_event("loss", 3, 1.0f);
  const std::string message = event.substr(12, event.size() - 16);
  for (int round = 0; round < 1000; ++round) {
    const std::string& good = round % 2 == 0 ? history : message;
    const auto view = std::as_bytes(std::span(good));
    trace_testing::Bytes bytes(view.begin(), view.end());
    mutator.mutate(bytes);
    const std::string made(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto evidence = round % 2 == 0 ? evidence_of("r.wandb", wandb_file({made, history}))
                                         : evidence_of("events.out.tfevents", tfrecord(made) + event);
    EXPECT_FALSE(evidence.series.empty());  // the sound message behind it is still read
  }
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
