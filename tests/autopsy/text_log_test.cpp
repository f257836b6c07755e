// SPDX-License-Identifier: Apache-2.0
// Text logs in the forms that programs print, and tracebacks in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/autopsy/log_files.h"

namespace nanhunt::autopsy_testing {
namespace {

using autopsy::Ended;
using autopsy::Unit;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Line {
  std::string text;
  std::string name;
  Unit unit;
  double at;
  double value;  // NaN stands for itself
};

TEST(TextLog, lines_of_many_loops_give_position_and_value) {
  const double nan = autopsy::kUnknown;
  const std::vector<Line> lines = {
      {"step 10 loss 2.31", "loss", Unit::kStep, 10, 2.31},
      {"{'loss': nan, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5}", "loss", Unit::kEpoch, 0.5, nan},
      {"Epoch 3 ... loss=nan", "loss", Unit::kEpoch, 3, nan},
      {"[2026-01-02 10:00:00,123] INFO Step 100/1000: train loss = 1.5e+01, lr: 1e-4", "train loss", Unit::kStep, 100,
       15},
      {"iter 7: loss 4.2, time 100.0ms, mfu 1.5%", "loss", Unit::kStep, 7, 4.2},
      {" iteration      100/ 1000 | consumed samples: 5 | lm loss: 1.0E+01 | loss scale: 65536.0 | grad norm: 2.5 |",
       "lm loss", Unit::kStep, 100, 10},
      {" iteration      100/ 1000 | lm loss: 1.0E+01 | loss scale: 65536.0 | number of nan iterations:   2 |",
       "loss scale", Unit::kStep, 100, 65536},
      {"step: 4 - loss: -inf - accuracy: 0.5", "loss", Unit::kStep, 4, -INFINITY},
      {"step 5 loss tensor(nan, device='cuda:0')", "loss", Unit::kStep, 5, nan},
      {"\x1b[31mstep: 130  \x1b[32mloss:  nan\x1b[0m", "loss", Unit::kStep, 130, nan},
      {"step 1,130 loss 2.5", "loss", Unit::kStep, 1130, 2.5},
      {"num_updates: 60 | loss: 2.5", "loss", Unit::kStep, 60, 2.5},
      {"step 7 Loss/train: 2.5", "Loss/train", Unit::kStep, 7, 2.5},
      {"step 7 loss train: nan", "loss train", Unit::kStep, 7, nan},
      {"Epoch: [0][ 130/5005]\tTime  0.1 (  0.2)\tLoss 6.9 (7.0)", "Loss", Unit::kStep, 130, 6.9},
      {"Epoch(train)  [1][50/100]  lr: 1.0e-03  loss: nan", "loss", Unit::kStep, 50, nan},
      {"[0/5][50/1583] loss: 2.5", "loss", Unit::kStep, 50, 2.5},
      {"Epoch 0:  45%|####5     | 45/100 [00:10<00:12,  4.35it/s, v_num=3, train_loss=nan.0]", "train_loss",
       Unit::kStep, 45, nan},
      {"Epoch [1/10], Step [100/600], Loss: nan", "Loss", Unit::kStep, 100, nan},
      {"Train Epoch: 1 [1280/60000 (2%)]\tLoss: 2.5", "Loss", Unit::kEpoch, 1, 2.5},
  };
  for (const Line& line : lines) {
    const auto evidence = evidence_of("stdout.log", line.text + "\n");
    const autopsy::Series* series = find_series(evidence, line.name);
    ASSERT_NE(series, nullptr) << line.text;
    EXPECT_EQ(series->unit, line.unit) << line.text;
    EXPECT_EQ(series->points[0].at, line.at) << line.text;
    if (std::isnan(line.value)) {
      EXPECT_TRUE(std::isnan(series->points[0].value)) << line.text;
    } else {
      EXPECT_EQ(series->points[0].value, line.value) << line.text;
    }
  }
}

TEST(TextLog, what_is_compared_with_and_the_best_so_far_are_no_curves) {
  const auto evidence = evidence_of("stdout.log",
                                    "epoch 0 best_val_loss inf\nstep 1 min_loss=inf\nstep 1 max_grad_norm: inf\n"
                                    "Namespace(loss=inf, lr=1e-3)\nargs: loss=inf\n");
  for (const autopsy::Series& series : evidence.series) ADD_FAILURE() << series.name;
}

TEST(TextLog, a_bad_number_under_a_name_that_is_not_known_is_quoted) {
  const auto evidence = evidence_of("stdout.log", "[0/5][50/1583] Loss_D: 1.5 Loss_G: 2.5\n[0/5][51/1583] Loss_D: nan Loss_G: nan\n");
  EXPECT_EQ(evidence.nan_line.text, "[0/5][51/1583] Loss_D: nan Loss_G: nan");
  EXPECT_EQ(evidence_of("stdout.log", "info: nano banana, infinite scroll\n").nan_line.text, "");
}

TEST(TextLog, a_share_of_a_bar_is_no_step) {
  const auto evidence = evidence_of("stdout.log", "steps:  13%|# | 130/1600 [00:01<00:10, avr_loss=nan]\n");
  for (const autopsy::Series& series : evidence.series) {
    for (const autopsy::Point& point : series.points) EXPECT_NE(point.at, 13) << series.name;
  }
}

TEST(TextLog, a_traceback_behind_a_bar_on_its_line_is_one) {
  const auto evidence = evidence_of("stderr.log",
                                    " 29%|#| 29/100 [00:01<00:01, 2.0it/s]Traceback (most recent call last):\n"
                                    "  File \"train.py\", line 3, in <module>\n    loss.backward()\n"
                                    "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.\n");
  ASSERT_THAT(evidence.tracebacks, SizeIs(1));
  EXPECT_EQ(evidence.tracebacks[0].backward, "SqrtBackward0");
  EXPECT_EQ(evidence.tracebacks[0].ended, Ended::kByBadNumber);
}

TEST(TextLog, an_exception_about_numbers_is_one_whatever_it_is_called) {
  const auto numeric = [](const std::string& code, const std::string& message) {
    const auto evidence = evidence_of("stderr.log", "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    " +
                                                        code + "\n" + message + "\n");
    return evidence.tracebacks.size() == 1 && evidence.tracebacks[0].ended == Ended::kByBadNumber;
  };
  EXPECT_TRUE(numeric("Categorical(logits=x)", "ValueError: Expected parameter logits to satisfy the constraint, but found invalid values:"));
  EXPECT_TRUE(numeric("assert not torch.isnan(loss).any()", "AssertionError"));
  EXPECT_TRUE(numeric("torch.multinomial(p, 1)", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"));
  EXPECT_FALSE(numeric("assert x.shape == (3,)", "AssertionError"));
  EXPECT_FALSE(numeric("torch.isnan(big).any()", "torch.OutOfMemoryError: CUDA out of memory."));
  EXPECT_FALSE(numeric("x = data[7]", "IndexError: list index out of range"));
}

TEST(TextLog, batches_of_later_epochs_are_counted_on) {
  const auto evidence = evidence_of("stdout.log",
                                    "Epoch 1/2\n 50/100 - loss: 2.5\n100/100 - loss: 2.5\n20/20 - val_loss: 2.5\n"
                                    "Epoch 2/2\n 50/100 - loss: nan\n");
  const autopsy::Series *loss = find_series(evidence, "loss"), *val = find_series(evidence, "val_loss");
  ASSERT_NE(loss, nullptr);
  ASSERT_NE(val, nullptr);
  ASSERT_THAT(loss->points, SizeIs(3));
  EXPECT_EQ(loss->points[2].at, 150);
  EXPECT_EQ(val->points[0].at, 100);
  EXPECT_THAT(loss->restarts, IsEmpty());
}

TEST(TextLog, a_bar_without_an_epoch_counts_nothing_that_is_known) {
  const auto evidence = evidence_of("stdout.log", " 30%|###  | 3/10 [00:01<00:10, loss=nan]\n");
  ASSERT_NE(find_series(evidence, "loss"), nullptr);
  EXPECT_EQ(find_series(evidence, "loss")->unit, Unit::kEntry);
}

TEST(TextLog, a_traceback_in_a_box_gives_exception_and_last_own_frame) {
  const auto evidence = evidence_of("stderr.log",
                                    "╭──────── Traceback (most recent call last) ────────╮\n"
                                    "│ /code/me/train.py:12 in <module>                  │\n"
                                    "│                                                   │\n"
                                    "│    9 loss = step()                                │\n"
                                    "│ ❱ 12 main()                                       │\n"
                                    "│                                                   │\n"
                                    "│ /code/me/model.py:7 in forward                    │\n"
                                    "│                                                   │\n"
                                    "│ ❱  7 assert torch.isfinite(x).all()               │\n"
                                    "╰───────────────────────────────────────────────────╯\n"
                                    "AssertionError\n");
  ASSERT_THAT(evidence.tracebacks, SizeIs(1));
  const autopsy::Traceback& one = evidence.tracebacks[0];
  EXPECT_EQ(one.exception, "AssertionError");
  EXPECT_EQ(one.file, "/code/me/model.py");
  EXPECT_EQ(one.line, 7u);
  EXPECT_EQ(one.function, "forward");
  EXPECT_EQ(one.ended, Ended::kByBadNumber);
}

TEST(TextLog, lines_below_an_exception_belong_to_its_message) {
  const auto ended = [](const std::string& rest) {
    const auto evidence = evidence_of(
        "stderr.log", "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    f()\n" + rest);
    return evidence.tracebacks.size() == 1 ? evidence.tracebacks[0].ended : Ended::kByScaleExhausted;
  };
  EXPECT_EQ(ended("RuntimeError:\nthe gradient of layer 3 is NaN\n"), Ended::kByBadNumber);
  EXPECT_EQ(ended("RuntimeError: training failed\n  because of non-finite gradients\n"), Ended::kByBadNumber);
  EXPECT_EQ(
      ended(
          "ValueError: Expected parameter loc, but found invalid values:\ntensor([[nan, nan],\n        [nan, 1.]])\n"),
      Ended::kByBadNumber);
  // A number out of range is finite.
  EXPECT_EQ(ended("ValueError: Expected parameter scale, but found invalid values:\ntensor([0., -1.])\n"),
            Ended::kOtherwise);
  EXPECT_EQ(ended("KeyError: 'x'\n\nnothing was NaN\n"), Ended::kOtherwise);
  EXPECT_EQ(ended("KeyError: 'x'\nstep 3 loss 2.5\nnan was seen in another run\n"), Ended::kOtherwise);
}

TEST(TextLog, what_a_launcher_puts_before_each_line_is_no_part_of_a_traceback) {
  const auto evidence = evidence_of("stderr.log",
                                    "(TrainWorker pid=12) Traceback (most recent call last):\n"
                                    "(TrainWorker pid=12)   File \"train.py\", line 3, in step\n"
                                    "(TrainWorker pid=12)     check(loss)\n"
                                    "(TrainWorker pid=12) ValueError: loss is nan\n");
  ASSERT_THAT(evidence.tracebacks, SizeIs(1));
  EXPECT_EQ(evidence.tracebacks[0].exception, "ValueError");
  EXPECT_EQ(evidence.tracebacks[0].file, "train.py");
}

TEST(TextLog, utf_16_is_read) {
  std::string text("\xff\xfe", 2);
  for (const char c : std::string("step 3 loss nan\n")) text += {c, '\0'};
  const auto evidence = evidence_of("stdout.log", text);
  ASSERT_NE(find_series(evidence, "loss"), nullptr);
  EXPECT_EQ(find_series(evidence, "loss")->points[0].at, 3);
}

TEST(TextLog, prose_holds_no_loss) {
  const auto evidence = evidence_of(
      "stdout.log", "We saw no loss in 1998 of the 3 models.\nLoaded 7 files, loss of precision: none\nInfo: nan\n");
  for (const autopsy::Series& series : evidence.series) ADD_FAILURE() << series.name;
}

TEST(TextLog, skipped_steps_of_deepspeed_and_apex_are_heard_with_their_scale) {
  const auto evidence =
      evidence_of("a.log",
                  "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
                  "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0\n");
  ASSERT_THAT(evidence.skipped, SizeIs(2));
  EXPECT_EQ(evidence.skipped[0].scale_after, 32768);
  EXPECT_EQ(evidence.skipped[1].scale_after, 16384);
}

TEST(TextLog, the_first_line_may_be_the_command_of_a_shell) {
  const auto command = [](const std::string& text) {
    const auto evidence = evidence_of("a.log", text);
    return evidence.commands.empty() ? std::vector<std::string>() : evidence.commands[0].words;
  };
  EXPECT_THAT(command("$ python train.py --name 'a b'\nstep 1 loss 2\n"),
              ElementsAre("python", "train.py", "--name", "a b"));
  // What a shell takes as a variable is no program.
  EXPECT_THAT(command("$ OMP_NUM_THREADS=1 python train.py\n"),
              ElementsAre("env", "OMP_NUM_THREADS=1", "python", "train.py"));
  EXPECT_THAT(command("$ python train.py; rm -rf x\n"), IsEmpty());
  EXPECT_THAT(command("step 1 loss 2\n$ python train.py\n"), IsEmpty());
}

TEST(TextLog, rows_of_evaluation_at_the_step_that_comes_move_no_step) {
  std::string lines;
  int step = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 10; ++i)
      lines += "epoch " + std::to_string(epoch) + " step " + std::to_string(step++) + " loss 2.5\n";
    lines += "epoch " + std::to_string(epoch) + " step " + std::to_string(step) + " val_loss 2.5\n";
  }
  const auto evidence = evidence_of("a.log", lines);
  EXPECT_EQ(find_series(evidence, "loss")->points.back().at, 29);
  EXPECT_EQ(find_series(evidence, "val_loss")->points.back().at, 30);
}

TEST(TextLog, a_bar_beside_trainers_dict_counts_no_batches_of_an_epoch) {
  const auto evidence = evidence_of(
      "a.log",
      " 50%|##| 1000/2000 [..]{'loss': 2.5, 'epoch': 5.0}\n 52%|##| 1050/2000 [..]{'loss': 2.5, 'epoch': 5.25}\n");
  ASSERT_THAT(evidence.series, SizeIs(1));
  EXPECT_EQ(evidence.series[0].unit, Unit::kEpoch);
}

TEST(TextLog, a_loop_of_evaluation_at_the_start_gives_no_length_to_epochs) {
  const auto evidence = evidence_of(
      "a.log", "[0][10/50] Test loss 2.3\n[0][100/500] loss 2.5\n[1][100/500] loss 2.5\n[1][10/50] Test loss 2.3\n");
  EXPECT_EQ(find_series(evidence, "loss")->points.back().at, 600);
}

TEST(TextLog, a_traceback_gives_exception_and_last_own_frame) {
  const auto evidence = evidence_of(
      "a.log",
      "Traceback (most recent call last):\n  File \"me/train.py\", line 12, in <module>\n    main()\n"
      "  File \"me/model.py\", line 7, in forward\n    return f(x)\n"
      "  File \"/v/lib/python3.11/site-packages/torch/nn/functional.py\", line 99, in linear\n    return x\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nstep 9 loss 1\n");
  ASSERT_THAT(evidence.tracebacks, SizeIs(1));
  const autopsy::Traceback& one = evidence.tracebacks[0];
  EXPECT_EQ(one.exception, "torch.OutOfMemoryError");
  EXPECT_EQ(one.file, "me/model.py");
  EXPECT_EQ(one.line, 7u);
  EXPECT_EQ(one.function, "forward");
  EXPECT_EQ(one.ended, Ended::kOtherwise);
  EXPECT_NE(find_series(evidence, "loss"), nullptr);
}

TEST(TextLog, anomaly_mode_gives_the_function_and_the_forward_call) {
  const auto evidence = evidence_of(
      "a.log",
      "/v/lib/python3.11/site-packages/torch/autograd/graph.py:1: UserWarning: Error detected in LogBackward0. "
      "Traceback of forward call that caused the error:\n"
      "  File \"me/train.py\", line 3, in <module>\n    loss = torch.log(x)\n (Triggered internally at x.cpp:1.)\n"
      "Traceback (most recent call last):\n  File \"me/train.py\", line 20, in <module>\n    loss.backward()\n"
      "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.\n");
  ASSERT_THAT(evidence.tracebacks, SizeIs(1));
  EXPECT_EQ(evidence.tracebacks[0].backward, "LogBackward0");
  EXPECT_EQ(evidence.tracebacks[0].line, 3u);
  EXPECT_EQ(evidence.tracebacks[0].ended, Ended::kByBadNumber);
}

TEST(TextLog, a_message_that_stops_training_counts_as_the_end) {
  EXPECT_THAT(guesses_of(evidence_of("a.log", "Loss is nan, stopping training\n")), ElementsAre("stopped_by_check"));
  EXPECT_THAT(evidence_of("a.log", "Finance: stopping here\n").tracebacks, IsEmpty());
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
