// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/next_command.h"

#include <algorithm>

#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

constexpr double kManySteps = 200;
constexpr std::size_t kMostJudged = 8;

const Began* began_of(const Judgement& judgement) {
  if (!judgement.guesses.empty() && (judgement.guesses[0].began.first_bad || judgement.guesses[0].began.last_good)) {
    return &judgement.guesses[0].began;
  }
  return judgement.began ? &*judgement.began : nullptr;
}

}  // namespace

std::string NextCommand::text() const {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : " ").append(shell_word(word));
  if (!known) text += "   # YOUR COMMAND in place of `python train.py`";
  return text;
}

NextCommand next_command(const Evidence& evidence, const Judgement& judgement) {
  NextCommand out;
  out.words = {"nanhunt", "run", "--out", "nanhunt-run"};
  const Began* began = began_of(judgement);
  const bool many =
      began != nullptr && began->unit == Unit::kStep && began->first_bad && *began->first_bad >= kManySteps;
  if (judgement.outcome == Outcome::kBadNumbers && many) out.words.emplace_back("--stop-on-fault");
  out.words.emplace_back("--");
  out.known = !evidence.command.empty();
  if (out.known) {
    out.words.insert(out.words.end(), evidence.command.begin(), evidence.command.end());
  } else {
    out.words.insert(out.words.end(), {"python", "train.py"});
  }
  return out;
}

std::string_view weights_word(Weights weights) {
  switch (weights) {
    case Weights::kNotJudged:
      return "not_judged";
    case Weights::kSound:
      return "sound";
    case Weights::kBad:
      return "bad";
  }
  return "";
}

std::optional<Resume> resume_from(const Evidence& evidence, const Judgement& judgement, const JudgeWeights& judge) {
  const Began* began = began_of(judgement);
  if (judgement.outcome != Outcome::kBadNumbers || began == nullptr || began->unit != Unit::kStep) return std::nullopt;
  if (!began->last_good) return std::nullopt;
  std::vector<const Checkpoint*> before;
  for (const Checkpoint& one : evidence.checkpoints) {
    if (static_cast<double>(one.step) <= *began->last_good && !one.has_bad_number) before.push_back(&one);
  }
  std::stable_sort(before.begin(), before.end(),
                   [](const Checkpoint* a, const Checkpoint* b) { return a->step > b->step; });
  Resume out;
  for (const Checkpoint* one : before) {
    out.checkpoint = one;
    out.weights = out.bad.size() < kMostJudged ? judge(one->path) : Weights::kNotJudged;
    if (out.weights != Weights::kBad) break;
    out.bad.push_back(one->path);
  }
  if (before.empty()) return std::nullopt;
  if (out.weights == Weights::kBad) {
    out.checkpoint = nullptr;
    out.text = "no checkpoint from before it is sound: the weights in " + out.bad.back() + " are bad as well";
    return out;
  }
  out.text = "resume from " + out.checkpoint->path + " (saved at step " + std::to_string(out.checkpoint->step);
  if (began->first_bad) out.text += ", before the first bad number, logged at step " + number_text(*began->first_bad);
  out.text +=
      out.weights == Weights::kSound ? "; its weights are sound)" : "; whether its weights are sound: nanhunt check)";
  if (!out.bad.empty()) out.text += ". " + out.bad.front() + " is newer, and its weights are bad";
  return out;
}

}  // namespace nanhunt::autopsy
