// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/sentinel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/rules/run/exploding.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

using Riddle = SentinelWatch::Riddle;

// "the loss and gradients (first: fc1.weight)".
std::string bad_parts(std::uint32_t bad, const std::string& first_path, bool trained = true) {
  std::vector<std::string> parts;
  const auto add = [&](std::uint32_t which, const char* words) {
    if ((bad & which) != 0) parts.emplace_back(words);
  };
  add(role_bit(TensorRole::kBatch), "the batch");
  add(role_bit(TensorRole::kLabel), "labels");
  add(role_bit(TensorRole::kLoss), "the loss");
  add(kGradientBit, "gradients");
  add(role_bit(TensorRole::kParameter), "parameters");
  add(role_bit(TensorRole::kState), "optimizer state");
  add(role_bit(TensorRole::kBuffer), "buffers");
  add(role_bit(TensorRole::kOutput), trained ? "what a validation computed" : "what a forward gave");
  std::string text = join(parts, 8, " and ");
  if (!first_path.empty()) text += fmt::format(" (first: {})", first_path);
  return text;
}

// Why no operation of a bad step is known: what was not done with it, and the reason.
struct Refusal {
  std::string_view verb;
  std::string why;
  bool heard;  // else the framework hears operations, and those of this step were not
};
Refusal refusal_of(const std::string& text) {
  constexpr std::string_view kUnheard = "The step was not heard: ", kSaid = "The step was not replayed: ";
  if (text.starts_with(kUnheard)) return {"was not heard", text.substr(kUnheard.size()), false};
  return {"was not replayed", text.starts_with(kSaid) ? text.substr(kSaid.size()) : text, true};
}

std::string or_else(const std::string& text, const char* otherwise) { return text.empty() ? otherwise : text; }

Phase phase_of(std::uint32_t bad) {
  if ((bad & role_bit(TensorRole::kLoss)) != 0) return Phase::kLoss;
  if ((bad & kGradientBit) != 0) return Phase::kBackward;
  if (bad == role_bit(TensorRole::kOutput)) return Phase::kValidation;
  return Phase::kOptimizer;
}

void add_sinks(Finding& f, std::uint32_t bad, const std::string& first_path, bool trained) {
  const auto add = [&](TensorRole kind, const char* words) {
    if ((bad & role_bit(kind)) != 0) f.sinks.emplace_back(words);
  };
  add(TensorRole::kLoss, "loss");
  add(TensorRole::kBoundaryGradient, "gradients");
  add(TensorRole::kParameter, "parameters");
  add(TensorRole::kState, "optimizer state");
  add(TensorRole::kBuffer, "buffers");
  add(TensorRole::kOutput, trained ? "what a validation computed" : "what a forward gave");
  if (f.sinks.size() == 1 && !first_path.empty() && f.sinks[0] != "loss") f.sinks[0] += " (" + first_path + ")";
}

// A run that is bad every few steps, of which no more is known than that: one finding with how often.
void fold_alike(std::vector<Finding>& findings) {
  struct Group {
    std::size_t at = 0;
    std::uint64_t more = 0;
  };
  const auto key = [](const Finding& f) { return std::tuple(f.severity, f.place.phase, f.sinks, f.explanation); };
  std::map<decltype(key(findings.front())), Group> groups;
  std::vector<Finding> kept;
  for (Finding& f : findings) {
    const bool riddle = f.cls == FindingClass::kUnexplained && !f.place.op;
    const auto [group, added] = riddle ? groups.try_emplace(key(f), Group{kept.size()}) : std::pair(groups.end(), true);
    if (added) {
      kept.push_back(std::move(f));
      continue;
    }
    Finding& first = kept[group->second.at];
    ++group->second.more;
    first.last_step = std::max(first.last_step, f.last_step);
    first.occurrence_count += f.occurrence_count;
    first.bad_steps.count += f.bad_steps.count;
    first.bad_steps.unwatched += f.bad_steps.count;
    first.bad_steps.last = std::max(first.bad_steps.last, f.bad_steps.last);
  }
  for (const auto& [_, group] : groups) {
    Finding& first = kept[group.at];
    if (group.more > 0)
      first.evidence.push_back(fmt::format("So it was {} more times until step {}, with good steps in between.", group.more,
                                           first.bad_steps.last));
  }
  findings = std::move(kept);
}

// Only gradients were bad, a scaler held the optimizer back each time, and no replay says otherwise.
bool is_calibration(const Riddle& riddle) {
  const bool untried = !riddle.replay || riddle.replay->result == ReplayResult::kRefused;
  return riddle.scaled && riddle.held_back && (riddle.all_bad & kSinkBits) == kGradientBit && untried;
}

void report_calibration(Finding& f, const Riddle& riddle) {
  const std::string steps = count_of(static_cast<std::int64_t>(riddle.count), "step");
  const bool lowered = riddle.good_scale < riddle.scale;
  f.cls = FindingClass::kScalerCalibration;
  f.severity = Severity::kInfo;
  f.benign = riddle.ended && lowered;
  const Refusal refusal = refusal_of(riddle.replay ? riddle.replay->text : "");
  f.explanation = riddle.tried()
                      ? "Replayed without the reduction of gradients, the step stayed finite: their sum over the "
                        "ranks passed what the format holds. "
                  : riddle.replay ? fmt::format("No op is known: such a step {}: {} ", refusal.verb, refusal.why)
                                  : "No such step was replayed, so the op is not known. ";
  f.explanation += "No parameter, state or buffer was touched.";
  if (!riddle.ended) {
    f.title = "The trace ends while the loss scaler skips steps";
    return;
  }
  f.title = fmt::format("The loss scaler held back {} whose gradients were not finite", steps);
  if (!lowered) f.explanation += " Training went on at the same scale or a larger one, so the scale did not cure it.";
}

void report_not_reproducible(Finding& f, const Riddle& riddle) {
  const bool harmed = !riddle.held_back || (riddle.all_bad & (kSinkBits & ~kGradientBit)) != 0;
  f.cls = FindingClass::kNotReproducible;
  f.severity = harmed ? Severity::kFault : Severity::kWarning;
  f.confidence = riddle.replay->result == ReplayResult::kClean ? Confidence::kObserved : Confidence::kInferred;
  const std::string bad = bad_parts(riddle.bad, riddle.first_path);
  f.advice = {make_advice("check-memory"), make_advice("record-ops")};
  if (riddle.replay->result == ReplayResult::kClean && (riddle.all_bad & kSinkBits) == kGradientBit) {
    f.title = fmt::format("Step {} went bad after backward, as far as a replay shows: {}", riddle.first, bad);
    f.explanation =
        "Replayed from the same parameters, batch and random numbers, forward and backward stayed finite, as the loss "
        "was. What the program itself does with gradients before the optimizer takes them is in no replay: clipping, "
        "unscaling, a reduction of its own. Otherwise a bit flipped in passing.";
    std::swap(f.advice[0], f.advice[1]);
  } else if (riddle.replay->result == ReplayResult::kClean) {
    f.title = fmt::format("Step {} went bad once and cannot be made to again: {}", riddle.first, bad);
    f.explanation =
        "Replayed from the same parameters, batch and random numbers, the step stayed finite. What made it bad is not "
        "in the program's arithmetic: contents that were written past the framework, as through an array that shares "
        "the memory (NumPy) or a storage; a bit that flipped in passing, faulty hardware; or something else that the "
        "replay does not repeat.";
    f.advice.insert(f.advice.begin(), make_advice("find-stray-write"));
  } else {
    f.title = fmt::format("Step {} went bad, and its replay came out otherwise: {}", riddle.first, bad);
    f.explanation =
        "Replayed from the same parameters, batch and random numbers, the step gave other numbers, and no op was seen "
        "to make a bad one. Something that the replay does not repeat is at work, so the replay neither clears the "
        "program's arithmetic nor names the op.";
  }
  f.evidence.push_back(riddle.replay->text);
}

void report_unexplained(Finding& f, const Riddle& riddle, bool trained) {
  f.cls = FindingClass::kUnexplained;
  f.confidence = Confidence::kInferred;
  f.title = fmt::format("Step {} was bad in {}, and what made it so was not recorded", riddle.first,
                        bad_parts(riddle.bad, riddle.first_path, trained));
  f.explanation = "It was read when the step ended, and no operation that was watched made it bad.";
  if (riddle.replay && riddle.replay->result == ReplayResult::kRefused) {
    const Refusal refusal = refusal_of(riddle.replay->text);
    f.explanation = refusal.heard ? "It was read when the step ended, and its operations are not known: " + refusal.why
                                  : "Its numbers show it, and its operations were not heard: " + refusal.why;
  }
  f.advice = {make_advice("record-ops")};
}

// Each rank's own gradients were finite, and what their reduction gave was not.
void report_between(Finding& f, const Riddle& riddle, const StepStory& story) {
  const bool harmed = !riddle.held_back || (riddle.all_bad & (kSinkBits & ~kGradientBit)) != 0;
  const bool all_known = story.unknown.empty() && story.untraced.empty();
  f.cls = FindingClass::kComm;
  f.severity = harmed ? Severity::kFault : Severity::kWarning;
  f.confidence =
      all_known && riddle.replay->result == ReplayResult::kClean ? Confidence::kObserved : Confidence::kInferred;
  f.place.phase = Phase::kComm;
  f.ranks = story.bad_on;
  f.title =
      fmt::format("Step {} went bad between the ranks: {}", riddle.first, bad_parts(riddle.bad, riddle.first_path));
  f.explanation = fmt::format(
      "Replayed without the reduction, the gradients of {} were finite. The sum over the ranks passed what the format "
      "holds, or the transfer itself failed.",
      ranks_text(story.replayed));
  if (!all_known) {
    std::vector<std::uint32_t> ranks = story.unknown;
    ranks.insert(ranks.end(), story.untraced.begin(), story.untraced.end());
    std::sort(ranks.begin(), ranks.end());
    f.explanation += fmt::format(" Or it came from {}, whose own gradients are not known{}.", ranks_text(ranks),
                                 story.unknown.empty() ? ": there is no trace" : "");
  }
  f.evidence.push_back(riddle.replay->text);
  f.advice = {make_advice("reduce-wider")};
  if (!all_known) f.advice.insert(f.advice.begin(), make_advice("look-at-other-ranks"));
}

Finding finding_of(const Riddle& riddle, const StepStory* story, bool trained) {
  Finding f;
  f.severity = Severity::kFault;
  f.place.step = f.first_step = f.last_step = riddle.first;
  f.unfinished = (riddle.all_bad & kLastingBits) == 0;  // so far: whether the program gave the steps up, their ends tell
  // Which of the steps after the first went bad anew is not known.
  const std::uint64_t others = riddle.count - 1;
  f.bad_steps = {riddle.count, 1, std::min(others, riddle.count - riddle.replayed), riddle.first, riddle.last};
  f.scale = riddle.scale;
  f.place.phase = phase_of(riddle.bad);
  f.bad_elements = 0;
  if (story != nullptr && story->between) {
    report_between(f, riddle, *story);
    // A sum of scaled gradients that fits at a lower scale is what the scaler looks for.
    const bool scaled = riddle.scaled && riddle.held_back && (riddle.all_bad & kSinkBits) == kGradientBit;
    if (scaled && (!riddle.ended || riddle.good_scale < riddle.scale)) report_calibration(f, riddle);
  } else if (riddle.tried()) {
    report_not_reproducible(f, riddle);
  } else {
    report_unexplained(f, riddle, trained);
  }
  if (is_calibration(riddle)) report_calibration(f, riddle);
  add_sinks(f, riddle.bad, riddle.first_path, trained);
  if (riddle.last > riddle.first)
    f.evidence.push_back(fmt::format("So it stayed until step {}.", riddle.last));
  return f;
}

// What of a finding's harm the sentinel alone has seen.
void add_harm(Finding& f, const std::map<std::uint32_t, SentinelWatch::Harm>& harms) {
  if (f.severity != Severity::kFault || f.bad_steps.count == 0) return;
  const auto harm = harms.lower_bound(f.bad_steps.first);
  if (harm == harms.end() || harm->first > f.bad_steps.last) return;
  bool added = false;
  const auto add = [&](TensorRole kind, const std::string& words, std::string_view one) {
    if ((harm->second.bad & role_bit(kind)) == 0) return;
    const bool known = std::any_of(f.sinks.begin(), f.sinks.end(),
                                   [&](const std::string& sink) { return sink.starts_with(one); });
    if (known) return;
    f.sinks.push_back(words);
    added = true;
  };
  add(TensorRole::kParameter, "parameters", "parameter");
  add(TensorRole::kState, "optimizer state", "optimizer state");
  add(TensorRole::kBuffer, "buffers", "buffer");
  if (!added) return;
  f.evidence.push_back(fmt::format("In step {} the sentinel found what is not finite in {}: {}.", harm->first,
                                   count_of(harm->second.tensors, "tensor"),
                                   bad_parts(harm->second.bad, harm->second.first_path)));
}

// A validation that is bad once more, whose operations were not kept, is no second fault.
bool validates_again(std::vector<Finding>& findings, const Riddle& riddle, bool trained) {
  if ((riddle.all_bad & ~kLoadedBits) != role_bit(TensorRole::kOutput)) return false;
  const auto first = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.severity != Severity::kInfo && f.place.op && (f.place.phase == Phase::kValidation || !trained) &&
           began(f) < riddle.first;
  });
  if (first == findings.end()) return false;
  first->bad_steps.count += riddle.count;
  first->bad_steps.last = std::max(first->bad_steps.last, riddle.last);
  first->evidence.push_back(fmt::format("In step {} a {} was bad again, whose operations were not kept.", riddle.first,
                                        trained ? "validation" : "forward"));
  return true;
}

}  // namespace

void report_sentinel(std::vector<Finding>& findings, const SentinelWatch& sentinel, const std::vector<Growth>& growths,
                     const RankVerdict& others, bool trained) {
  for (Finding& f : findings) {
    add_harm(f, sentinel.harms());
    if (!f.place.op && f.cls != FindingClass::kExploding) continue;
    const auto replay = sentinel.replays().find(f.place.step);
    if (replay == sentinel.replays().end()) continue;
    const std::uint32_t step = f.place.step;
    switch (replay->second.result) {
      case ReplayResult::kReproduced:
        f.evidence.push_back(fmt::format("Seen in a replay of step {}. {}", step,
                                         or_else(replay->second.text, "It came out as the step itself, bit for bit.")));
        break;
      case ReplayResult::kDiffers:
        f.confidence = Confidence::kInferred;
        f.evidence.push_back(fmt::format("Seen in a replay of step {} that was bad in another way. {}", step,
                                         or_else(replay->second.text, "What differs was not recorded.")));
        break;
      case ReplayResult::kBegin:
        f.confidence = Confidence::kInferred;
        f.evidence.push_back(fmt::format("Seen in a replay of step {} whose end the trace does not hold.", step));
        break;
      case ReplayResult::kRefused:
        f.evidence.push_back(fmt::format("Step {} {}: {}", step, refusal_of(replay->second.text).verb,
                                         refusal_of(replay->second.text).why));
        break;
      case ReplayResult::kClean:
        break;
    }
  }
  for (std::size_t i = 0; i < sentinel.riddles().size(); ++i) {
    const Riddle& riddle = sentinel.riddles()[i];
    // What was bad at the start of later steps is what this left behind.
    std::uint64_t more = 0, unwatched = 0;
    std::uint32_t last = riddle.last;
    std::erase_if(findings, [&](const Finding& f) {
      const bool follows = f.cls == FindingClass::kBadState && began(f) > riddle.first &&
                           (!riddle.ended || began(f) <= riddle.last + 1);
      if (follows) {
        more += f.bad_steps.count;
        unwatched += f.bad_steps.unwatched;
        last = std::max(last, ended(f));
      }
      return follows;
    });
    const auto story = others.steps.find(i);
    if (story != others.steps.end() && story->second.carried) continue;
    if (validates_again(findings, riddle, trained)) continue;
    Finding f = finding_of(riddle, story == others.steps.end() ? nullptr : &story->second, trained);
    if (story != others.steps.end()) report_rank_propagation(f, story->second.arrivals, others.rank);
    f.bad_steps.count += more;
    f.bad_steps.unwatched += unwatched;
    f.bad_steps.last = last;
    const auto growth = std::find_if(growths.begin(), growths.end(),
                                     [&](const Growth& g) { return g.step == riddle.first; });
    if (growth != growths.end() && f.cls == FindingClass::kUnexplained) report_exploding(f, *growth);
    findings.push_back(std::move(f));
  }
  fold_alike(findings);
}

}  // namespace nanhunt::analyze
