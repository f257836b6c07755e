// SPDX-License-Identifier: Apache-2.0
// Logs as programs print them that people report about: what is said, with '!' where it is `likely`, and a twin beside
// each on which it is not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/autopsy/log_files.h"

namespace nanhunt::autopsy_testing {
namespace {

struct Report {
  std::string what;
  std::string name;  // of the file
  std::string text;
  std::string first;  // the first guess
};

std::string steps(int from, int to, const std::string& rest) {
  std::string text;
  for (int step = from; step < to; ++step) text += "step " + std::to_string(step) + " " + rest + "\n";
  return text;
}

std::string raised(const std::string& last) {
  return "step 1 loss 2.1\nTraceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n" + last + "\n";
}

std::vector<Report> reports() {
  const std::string good = steps(0, 9, "loss 2.1"), bad = steps(9, 12, "loss nan");
  return {
      {"a step that is left out", "a.log", good + "Loss is nan, skipping this batch\n" + steps(9, 12, "loss 2.0"),
       "noted_by_program"},
      {"advice", "a.log", "Note: if you see loss: nan, lower the learning rate\n" + good, "healthy!"},
      {"an option", "a.log", "abort on loss nan: True\n" + good, "healthy!"},
      {"an exception without its traceback", "a.log",
       good + "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.\n", "noted_by_program"},
      {"a writer's warning", "a.log", good + "WARNING: NaN or Inf found in input tensor.\n", "noted_by_program"},
      {"a warning about something else", "a.log", good + "WARNING: no NaN found in input tensor.\n", "healthy"},
      {"a mean in brackets", "a.log", "Epoch: [0][3/100] Loss 2.13 (2.15)\nEpoch: [0][4/100] Loss 2.14 (nan)\n",
       "first_step"},
      {"means that are fine", "a.log", "Epoch: [0][3/100] Loss 2.13 (2.15)\nEpoch: [0][4/100] Loss 2.14 (2.14)\n",
       "healthy!"},
      {"a count of NaN iterations", "a.log", " iteration 6/ 100 | lm loss: 2.1E+00 | number of nan iterations: 1 |\n",
       "noted_by_program"},
      {"a count of none", "a.log", " iteration 6/ 100 | lm loss: 2.1E+00 | number of nan iterations: 0 |\n",
       "healthy!"},
      {"Microsoft's NaN", "a.log", good + steps(9, 12, "loss -1.#IND"), "sudden!"},
      {"a number beside the loss", "a.log", good + steps(9, 12, "loss 2.0 kl nan"), "healthy"},
      {"evaluation under the same name", "a.log",
       "[train] epoch 0 loss 2.0\n[val] epoch 0 loss nan\n[train] epoch 1 loss 1.9\n[val] epoch 1 loss nan\n[train] "
       "epoch 2 loss 1.8\n[val] epoch 2 loss nan\n[train] epoch 3 loss 1.8\n",
       "eval_only!"},
      {"the same in dicts", "a.jsonl", R"({"mode": "train", "epoch": 1, "loss": 2}
{"mode": "val", "epoch": 1, "loss": NaN}
{"mode": "train", "epoch": 2, "loss": 2}
{"mode": "train", "epoch": 3, "loss": 2}
)",
       "eval_only!"},
      {"evaluation that is fine", "a.log", "[train] epoch 0 loss 2.0\n[val] epoch 0 loss 2.1\n", "healthy!"},
      {"evaluation in some epochs only", "a.tsv",
       "epoch\ttrain_loss\tval_loss\n1\t2.1\tnan\n2\t2.0\t2.1\n3\t1.9\tnan\n4\t1.8\t2.0\n", "eval_only"},
      {"a training loss that is 0 beside it", "a.csv",
       "step,loss,eval_loss\n1,2.1,2.1\n2,2.0,2.0\n3,0,nan\n4,0,nan\n5,0,nan\n6,0,nan\n", "hidden_by_filter"},
      {"one rank of two", "a.log",
       "[rank0] step 0 loss 2\n[rank1] step 0 loss 2\n[rank0] step 1 loss 2\n[rank1] step 1 loss 2\n[rank0] step 2 "
       "loss 2\n[rank1] step 2 loss 2\n[rank0] step 3 loss 2\n[rank1] step 3 loss nan\n[rank0] step 4 loss 2\n[rank1] "
       "step 4 loss nan\n[rank0] step 5 loss 2\n",
       "sudden"},
      {"three runs that each end so", "a.log", good + bad + good + bad + good + bad, "sudden!"},
      {"a scale of something else", "a.log",
       "step 0 loss 2.0 scale 1\nstep 1 loss 1.9 scale 0.5\nstep 2 loss 1.8 scale 0.25\nstep 3 loss 1.7 scale 0.125\n",
       "healthy!"},
      {"a loss scale called scale", "a.log",
       "step 0 loss 2 scale 128\nstep 1 loss 2 scale 8\nstep 2 loss 2 scale 0.5\nstep 3 loss 2 scale 0.25\n",
       "scaler_collapsing!"},
      {"steps that Trainer's scaler left out", "a.log",
       "{'loss': 2.0, 'grad_norm': inf, 'learning_rate': 0.0, 'epoch': 0.0}\n{'loss': 1.9, 'grad_norm': inf, "
       "'learning_rate': 0.0, 'epoch': 0.01}\n{'loss': 1.8, 'grad_norm': 1.0, 'learning_rate': 2e-05, 'epoch': "
       "0.02}\n{'loss': 1.7, 'grad_norm': 1.0, 'learning_rate': 2e-05, 'epoch': 0.03}\n",
       "scaler_calibrating!"},
      {"a gradient that was stepped with", "a.log",
       "{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.0}\n{'loss': 1.9, 'grad_norm': inf, "
       "'learning_rate': 1e-05, 'epoch': 0.01}\n{'loss': 1.8, 'grad_norm': 1.0, 'learning_rate': 2e-05, 'epoch': "
       "0.02}\n",
       "gradient_only!"},
      {"a search for the rate", "a.log",
       "Finding best initial lr:  50%|#| 50/100 [00:01<00:01, loss=90.1]\nFinding best initial lr:  90%|#| 90/100 "
       "[00:01<00:01, loss=nan]\nEpoch 0: train_loss 2.0\nEpoch 1: train_loss 2.0\n",
       "healthy!"},
      {"a file that is called so", "a.log",
       raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/nan/x.csv'"), "died_otherwise!"},
      {"a name that is missing", "a.log", raised("KeyError: 'nan'"), "died_otherwise!"},
      {"a path in a message", "a.log", raised("ValueError: cannot read config/inf.yaml"), "died_otherwise!"},
      {"a value", "a.log", raised("ValueError: the loss of batch 3 is nan"), "stopped_by_check"},
      {"an infinite scale at the start", "a.log", "step 1 loss 1.2 loss_scale inf\nstep 2 loss 1.1 loss_scale 3\n",
       "healthy"},
      {"weights that were loaded", "a.log", "Resuming from checkpoint last.ckpt\nstep 0 loss nan\nstep 1 loss nan\n",
       "after_resume"},
      {"weights that were not", "a.log", "step 0 loss nan\nstep 1 loss nan\n", "first_step!"},
      {"thousands", "a.log",
       "step 0 loss 4,200.5\nstep 7 loss 1,001.5\nstep 8 loss 999.2\nstep 9 loss 950.1\nstep 10 loss nan\n", "sudden"},
      {"a loss below 0 that falls", "a.log", "step 0 loss -0.7\nstep 1 loss -20.5\nstep 2 loss -1990.5\n", "healthy!"},
      {"two that train against each other", "a.log",
       "[0/5][50/400] Loss_D: 0.6 Loss_G: 2.1\n[0/5][100/400] Loss_D: 0.6 Loss_G: 2.1\n[0/5][150/400] Loss_D: 0.6 "
       "Loss_G: 2.1\n[0/5][200/400] Loss_D: 0.6 Loss_G: nan\n",
       "sudden"},
      {"one of them that is 0", "a.log",
       "[0/5][50/400] Loss_D: 0.6\n[0/5][100/400] Loss_D: 0.0\n[0/5][150/400] Loss_D: 0.0\n[0/5][200/400] Loss_D: "
       "0.0\n",
       "healthy!"},
      {"a table with a line for each number", "a.log",
       "|    iterations    | 1   |\n|    loss    | 2.5   |\n-----\n|    iterations    | 2   |\n|    loss    | nan   "
       "|\n-----\n",
       "first_step"},
      {"a table of fastai", "a.log",
       "epoch     train_loss  valid_loss  time\n0         2.1         2.0         00:12\n1         nan         nan     "
       "    00:12\n",
       ""},
      {"a table in a box", "a.log",
       "┃ Epoch ┃ Train loss ┃ Val loss ┃\n├───────┤\n│ 1 │ 2.1 │ 2.1 │\n│ 2 │ 2.1 │ 2.1 │\n", "healthy!"},
      {"semicolons and decimal commas", "a.csv", "epoch;train_loss;lr\n1;2,5;0,001\n2;2,5;0,001\n", "healthy!"},
      {"a row that was cut off", "a.csv", "step,loss,lr\n1,2.5,1\n2,2.5,1\n3,2.", "healthy"},
      {"tabs", "a.tsv", "step\tloss\n0\t2.5\n1\tnan\n", "first_step"},
      {"a table that TensorBoard exported", "run-a-tag-train_loss.csv", "Wall time,Step,Value\n1.0,0,2.5\n2.0,1,nan\n",
       "first_step"},
      {"a table that W&B exported", "a.csv",
       "\"Step\",\"run-nan - train/loss\",\"run-nan - "
       "train/loss__MIN\"\n\"0\",\"2.5\",\"nan\"\n\"1\",\"2.5\",\"nan\"\n",
       "healthy!"},
      {"columns", "history.json", "{\n \"loss\": [2.5, 2.4, NaN],\n \"val_loss\": [2.5, 2.4, 2.3]\n}\n", ""},
      {"a metric of an evaluation by MLflow", "mlruns/0/a1/metrics/val_metrics/loss",
       "1764288000000 2.5 0\n1764288000001 nan 1\n", "eval_only"},
      {"a count of none before the phrase", "a.log", good + "0 gradients are NaN\n", "healthy"},
      {"a count of none behind it", "a.log", good + "NaN loss count: 0\nnon-finite gradients skipped: 0\n", "healthy"},
      {"an option by its name", "a.log",
       good + "Stopping on NaN loss is disabled\nAbort on NaN loss: True\nLoss is NaN: False\n", "healthy"},
      {"a count of some", "a.log", good + "3 gradients are NaN\n", "noted_by_program"},
      {"an argument", "a.log", raised("ValueError: --clip must be finite, got --clip=inf"), "died_otherwise!"},
      {"a row with neither number in a table that parts them", "a.csv",
       "step,loss,val_loss\n1,2.3,nan\n2,2.3,nan\n2,nan,2.4\n3,2.3,nan\n4,nan,nan\n5,2.3,nan\n6,2.3,nan\n",
       "eval_only!"},
      {"a metric of MLflow", "mlruns/0/a1/metrics/train/loss", "1764288000000 2.5 0\n1764288000001 nan 1\n",
       "first_step"},
  };
}

TEST(Reports, each_is_said_what_it_shows_and_no_more) {
  for (const Report& one : reports()) {
    const auto guesses = guesses_of(evidence_of(one.name, one.text));
    EXPECT_EQ(guesses.empty() ? "" : guesses[0], one.first) << one.what << "\n" << one.text;
  }
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
