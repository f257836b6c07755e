// SPDX-License-Identifier: Apache-2.0
// Each format: what was written is read, NaN and both infinities kept apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/autopsy/log_files.h"

namespace nanhunt::autopsy_testing {
namespace {

using autopsy::Quantity;
using autopsy::Unit;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_three_kinds_of_bad(const autopsy::Series* series) {
  ASSERT_NE(series, nullptr);
  ASSERT_EQ(series->points.size(), 4u);
  EXPECT_EQ(series->quantity, Quantity::kLoss);
  EXPECT_EQ(series->unit, Unit::kStep);
  EXPECT_EQ(series->points[0].value, 0.5);
  EXPECT_TRUE(std::isnan(series->points[1].value));
  EXPECT_EQ(series->points[2].value, kInf);
  EXPECT_EQ(series->points[3].value, -kInf);
  EXPECT_EQ(series->points[3].at, 40);
}

TEST(Readers, tensorboard_scalars_are_read_with_their_steps) {
  const float inf = static_cast<float>(kInf);
  const auto evidence =
      evidence_of("events.out.tfevents.1.host",
                  scalar_event("train/loss", 10, 0.5f) + scalar_event("train/loss", 20, static_cast<float>(kNan)) +
                      scalar_event("train/loss", 30, inf) + scalar_event("train/loss", 40, -inf));
  expect_three_kinds_of_bad(find_series(evidence, "train/loss"));
  EXPECT_THAT(evidence.sources[0].damage, IsEmpty());
}

TEST(Readers, tensorboard_tensors_of_one_number_are_scalars_and_larger_ones_are_not) {
  const std::string shape, one = varint_field(1, 1) + bytes_field(4, std::string("\0\0\0\x3f", 4));
  const std::string two = varint_field(1, 1) + bytes_field(4, std::string(8, '\0'));
  const auto event = [](std::string_view tag, std::string_view tensor) {
    return tfrecord(varint_field(2, 3) + bytes_field(5, bytes_field(1, bytes_field(1, tag) + bytes_field(8, tensor))));
  };
  const auto evidence = evidence_of("events.out.tfevents.1", event("loss", one) + event("other_loss", two));
  ASSERT_NE(find_series(evidence, "loss"), nullptr);
  EXPECT_EQ(find_series(evidence, "loss")->points[0].value, 0.5);
  EXPECT_EQ(find_series(evidence, "other_loss"), nullptr);
}

TEST(Readers, a_wrong_checksum_costs_the_rest_of_the_file_and_is_said) {
  std::string file = scalar_event("loss", 1, 1.0f) + scalar_event("loss", 2, 2.0f) + scalar_event("loss", 3, 3.0f);
  file[file.size() / 2] ^= 1;
  const auto evidence = evidence_of("events.out.tfevents.1", file);
  EXPECT_EQ(find_series(evidence, "loss")->points.size(), 1u);
  EXPECT_THAT(evidence.sources[0].damage, HasSubstr("checksum"));
}

TEST(Readers, wandb_history_is_read_across_blocks) {
  std::vector<std::string> records;
  records.push_back(wandb_history(10, {{"train/loss", "0.5"}, {"note", '"' + std::string(70000, 'x') + '"'}}));
  records.push_back(wandb_history(20, {{"train/loss", "NaN"}}));
  records.push_back(wandb_history(30, {{"train/loss", "Infinity"}}));
  records.push_back(wandb_history(40, {{"train/loss", "\"-Infinity\""}}));
  const auto evidence = evidence_of("run-1.wandb", wandb_file(records));
  EXPECT_THAT(evidence.sources[0].damage, IsEmpty());
  expect_three_kinds_of_bad(find_series(evidence, "train/loss"));
}

TEST(Readers, wandb_gives_the_command_without_its_secrets) {
  const std::string environment = bytes_field(5, "--lr") + bytes_field(5, "3") + bytes_field(5, "--api-key") +
                                  bytes_field(5, "abc") + bytes_field(6, "train.py") +
                                  bytes_field(14, "/usr/bin/python3");
  const auto evidence = evidence_of("run-1.wandb", wandb_file({bytes_field(26, environment)}));
  ASSERT_THAT(evidence.commands, SizeIs(1));
  EXPECT_THAT(evidence.commands[0].words,
              ElementsAre("/usr/bin/python3", "train.py", "--lr", "3", "--api-key", "<redacted>"));
}

TEST(Readers, wandb_metadata_gives_the_command_too) {
  const auto evidence = evidence_of("wandb-metadata.json", R"({"program": "a b.py", "args": ["--x", "\u0041"]})");
  ASSERT_THAT(evidence.commands, SizeIs(1));
  EXPECT_THAT(evidence.commands[0].words, ElementsAre("python", "a b.py", "--x", "A"));
}

TEST(Readers, trainer_state_is_read_and_its_mean_of_the_run_is_not_a_loss) {
  const auto evidence =
      evidence_of("trainer_state.json",
                  R"({"epoch": 1.0, "log_history": [{"epoch": 0.1, "loss": 0.5, "grad_norm": NaN, "step": 10},
          {"loss": NaN, "step": 20}, {"loss": Infinity, "step": 30}, {"loss": -Infinity, "step": 40},
          {"eval_loss": 2.0, "step": 40}, {"train_loss": NaN, "train_runtime": 3.0, "step": 40}]})");
  expect_three_kinds_of_bad(find_series(evidence, "loss"));
  EXPECT_EQ(find_series(evidence, "eval_loss")->quantity, Quantity::kEvalLoss);
  EXPECT_EQ(find_series(evidence, "grad_norm")->quantity, Quantity::kGradNorm);
  EXPECT_EQ(find_series(evidence, "train_loss"), nullptr);
}

TEST(Readers, empty_cells_of_csv_are_no_values) {
  const auto evidence = evidence_of(
      "metrics.csv", "epoch,\"train_loss\",step,val_loss\n0,0.5,10,\n0,,15,1.5\n0,nan,20,\n0,inf,30,\n0,-inf,40,\n");
  expect_three_kinds_of_bad(find_series(evidence, "train_loss"));
  ASSERT_NE(find_series(evidence, "val_loss"), nullptr);
  EXPECT_EQ(find_series(evidence, "val_loss")->points.size(), 1u);
  EXPECT_EQ(find_series(evidence, "val_loss")->points[0].at, 15);
}

TEST(Readers, json_lines_are_flattened_and_a_bad_line_costs_only_itself) {
  const auto evidence = evidence_of(
      "m.jsonl",
      "{\"step\": 10, \"train\": {\"loss\": 0.5}}\n{\"step\": 20, \"train\": {\"loss\": NaN}}\n{\"step\": 25, \"trai\n"
      "{\"step\": 30, \"train\": {\"loss\": Infinity}}\n{\"step\": 40, \"train\": {\"loss\": \"-inf\"}}\n");
  expect_three_kinds_of_bad(find_series(evidence, "train.loss"));
  EXPECT_THAT(evidence.sources[0].damage, HasSubstr("line 3"));
}

TEST(Readers, a_step_within_the_epoch_goes_on_from_the_epoch_before) {
  const auto evidence = evidence_of("m.csv", "epoch,step,loss\n0,0,1\n0,1,2\n1,0,3\n1,1,4\n");
  const autopsy::Series* loss = find_series(evidence, "loss");
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->points[2].at, 2);
  EXPECT_EQ(loss->points[3].at, 3);
  EXPECT_THAT(loss->restarts, IsEmpty());
}

TEST(Readers, settings_are_those_of_numerics_alone) {
  const auto evidence =
      evidence_of("config.yaml", "lr:\n    value: 0.1\nprecision: '16-mixed'\nname: secret\noptim:\n  eps: 1e-8\n");
  ASSERT_EQ(evidence.settings.size(), 3u);
  EXPECT_EQ(evidence.settings[0].key + "=" + evidence.settings[0].value, "lr=0.1");
  EXPECT_EQ(evidence.settings[1].value, "16-mixed");
  EXPECT_EQ(evidence.settings[2].key, "eps");
}

TEST(Readers, names_of_logged_values_mean_what_they_say) {
  const std::vector<std::pair<std::string, Quantity>> known = {{"loss", Quantity::kLoss},
                                                               {"train/loss", Quantity::kLoss},
                                                               {"lm loss", Quantity::kLoss},
                                                               {"train_loss_step", Quantity::kLoss},
                                                               {"val_loss", Quantity::kEvalLoss},
                                                               {"eval/loss", Quantity::kEvalLoss},
                                                               {"grad norm", Quantity::kGradNorm},
                                                               {"train/grad_norm", Quantity::kGradNorm},
                                                               {"lr-Adam", Quantity::kLearningRate},
                                                               {"learning rate", Quantity::kLearningRate},
                                                               {"loss scale", Quantity::kLossScale},
                                                               {"number of skipped iterations", Quantity::kSkipped},
                                                               {"number of nan iterations", Quantity::kNanSteps}};
  for (const auto& [name, quantity] : known) EXPECT_EQ(autopsy::quantity_of(name), quantity) << name;
  for (const std::string_view name : {"accuracy", "glossary", "clr", "loss_fn", "weight_scale_init", "nan", ""}) {
    EXPECT_EQ(autopsy::quantity_of(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
