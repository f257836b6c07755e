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

std::size_t common_folders(std::string_view a, std::string_view b) {
  std::size_t folders = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) folders += a[i] == '/' ? 1u : 0u;
  return folders;
}

// Whether a path lies nearer to the log of a run in which nothing was bad than to the log that is judged: folders of
// several runs may be read at once.
bool is_of_another_run(const Evidence& evidence, const Judgement& judgement, std::string_view path) {
  if (!judgement.source) return false;
  const std::size_t near = common_folders(path, evidence.sources[*judgement.source].path);
  const auto is_bad = [](const Point& point) { return !is_finite(point.value); };
  return std::any_of(evidence.series.begin(), evidence.series.end(), [&](const Series& series) {
    const Source& source = evidence.sources[series.source];
    if (series.quantity != Quantity::kLoss || common_folders(path, source.path) <= near) return false;
    if (source.format == "trainer_state.json") return false;  // of a checkpoint, up to its step
    return std::none_of(evidence.series.begin(), evidence.series.end(), [&](const Series& one) {
      return one.source == series.source && std::any_of(one.points.begin(), one.points.end(), is_bad);
    });
  });
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
  // The command in the log that is judged, else one that is not another run's.
  const Command* command = nullptr;
  for (const Command& one : evidence.commands) {
    if (is_of_another_run(evidence, judgement, evidence.sources[one.source].path)) continue;
    if (command == nullptr || one.source == judgement.source) command = &one;
  }
  out.known = command != nullptr;
  if (out.known) {
    out.words.insert(out.words.end(), command->words.begin(), command->words.end());
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
    case Weights::kUnreadable:
      return "unreadable";
  }
  return "";
}

std::optional<Resume> resume_from(const Evidence& evidence, const Judgement& judgement, const JudgeWeights& judge) {
  const Began* began = began_of(judgement);
  if (judgement.outcome != Outcome::kBadNumbers || began == nullptr || began->unit != Unit::kStep) return std::nullopt;
  if (!began->last_good) return std::nullopt;
  std::vector<const Checkpoint*> before;
  bool later = false;
  for (const Checkpoint& one : evidence.checkpoints) {
    if (one.has_bad_number || is_of_another_run(evidence, judgement, one.path)) continue;
    const bool good = static_cast<double>(one.step) <= *began->last_good;
    if (good) before.push_back(&one);
    later |= !good;
  }
  std::stable_sort(before.begin(), before.end(),
                   [](const Checkpoint* a, const Checkpoint* b) { return a->step > b->step; });
  const auto full_path = [&](const Checkpoint& one) {
    return evidence.place.empty() ? one.path : evidence.place + "/" + one.path;
  };
  Resume out;
  std::string newer;
  for (const Checkpoint* one : before) {
    out.checkpoint = one;
    out.weights = out.bad.size() < kMostJudged ? judge(full_path(*one)) : Weights::kNotJudged;
    if (out.weights != Weights::kBad && out.weights != Weights::kUnreadable) break;
    out.bad.push_back(one->path);
    out.checkpoint = nullptr;
    if (newer.empty())
      newer = one->path +
              (out.weights == Weights::kBad ? " is newer, and its weights are bad" : " is newer, and cannot be read");
  }
  if (before.empty() && !later) return std::nullopt;
  if (out.checkpoint == nullptr) {
    out.text = before.empty() ? "no checkpoint from before it is left: begin anew, with --guard-checkpoints"
                              : "no checkpoint from before it is sound, the newest is " + before.front()->path;
    return out;
  }
  const std::string path = full_path(*out.checkpoint);
  out.text = "resume from " + path + " (saved at step " + std::to_string(out.checkpoint->step);
  if (began->first_bad) out.text += ", before the first bad number, logged at step " + number_text(*began->first_bad);
  out.text += out.weights == Weights::kSound
                  ? "; its weights are sound)"
                  : "; whether its weights are sound: nanhunt check " + shell_word(path) + ")";
  if (!newer.empty()) out.text += ". " + newer;
  return out;
}

}  // namespace nanhunt::autopsy
