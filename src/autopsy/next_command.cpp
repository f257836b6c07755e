// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/next_command.h"

#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

constexpr double kManySteps = 200;

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

std::optional<Resume> resume_from(const Evidence& evidence, const Judgement& judgement) {
  const Began* began = began_of(judgement);
  if (judgement.outcome != Outcome::kBadNumbers || began == nullptr || began->unit != Unit::kStep) return std::nullopt;
  const std::optional<double> good = began->last_good;
  if (!good) return std::nullopt;
  const Checkpoint* best = nullptr;
  for (const Checkpoint& one : evidence.checkpoints) {
    if (static_cast<double>(one.step) > *good || one.has_bad_number) continue;
    if (best == nullptr || one.step > best->step) best = &one;
  }
  if (best == nullptr) return std::nullopt;
  Resume out;
  out.checkpoint = best;
  out.text = "resume from " + best->path + " (saved at step " + std::to_string(best->step);
  if (began->first_bad) out.text += ", before the first bad number, logged at step " + number_text(*began->first_bad);
  out.text += best->has_state ? "; its own log has none)" : "; whether its weights are sound: nanhunt check)";
  return out;
}

}  // namespace nanhunt::autopsy
