// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/unheard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "src/analyze/rules/run/exploding.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

using Riddle = HealthWatch::Riddle;

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

// Why no operation of a bad step is known, without what the framework says before each reason.
std::string reason_of(const std::string& why) {
  constexpr std::string_view kSaid = "The step was not heard: ";
  return why.starts_with(kSaid) ? why.substr(kSaid.size()) : why;
}

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

// Only gradients were bad, and a scaler held the optimizer back each time.
bool is_calibration(const Riddle& riddle) {
  return riddle.scaled && riddle.held_back && (riddle.all_bad & kSinkBits) == kGradientBit;
}

void report_calibration(Finding& f, const Riddle& riddle) {
  const std::string steps = count_of(static_cast<std::int64_t>(riddle.count), "step");
  const bool lowered = riddle.good_scale < riddle.scale;
  f.cls = FindingClass::kScalerCalibration;
  f.severity = Severity::kInfo;
  f.benign = riddle.ended && lowered;
  f.explanation = riddle.why.empty() ? "The operations of no such step were kept. "
                                     : fmt::format("No op is known: such a step was not heard: {} ", reason_of(riddle.why));
  f.explanation += "No parameter, state or buffer was touched.";
  if (!riddle.ended) {
    f.title = "The trace ends while the loss scaler skips steps";
    return;
  }
  f.title = fmt::format("The loss scaler held back {} whose gradients were not finite", steps);
  if (!lowered) f.explanation += " Training went on at the same scale or a larger one, so the scale did not cure it.";
}

void report_unexplained(Finding& f, const Riddle& riddle, bool trained) {
  f.cls = FindingClass::kUnexplained;
  f.confidence = Confidence::kInferred;
  f.title = fmt::format("Step {} was bad in {}, and what made it so was not recorded", riddle.first,
                        bad_parts(riddle.bad, riddle.first_path, trained));
  f.explanation = "It was read when the step ended, and no operation that was watched made it bad.";
  if (!riddle.why.empty()) f.explanation = "Its numbers show it, and its operations were not heard: " + reason_of(riddle.why);
  f.advice = {make_advice("record-ops")};
}

Finding finding_of(const Riddle& riddle, bool trained) {
  Finding f;
  f.severity = Severity::kFault;
  f.place.step = f.first_step = f.last_step = riddle.first;
  f.unfinished = (riddle.all_bad & kLastingBits) == 0;  // so far: whether the program gave the steps up, their ends tell
  // Which of the steps after the first went bad anew is not known.
  f.bad_steps = {riddle.count, 1, riddle.count - 1, riddle.first, riddle.last};
  f.scale = riddle.scale;
  f.place.phase = phase_of(riddle.bad);
  f.bad_elements = 0;
  if (is_calibration(riddle)) {
    report_calibration(f, riddle);
  } else {
    report_unexplained(f, riddle, trained);
  }
  add_sinks(f, riddle.bad, riddle.first_path, trained);
  if (riddle.last > riddle.first)
    f.evidence.push_back(fmt::format("So it stayed until step {}.", riddle.last));
  return f;
}

// What of a finding's harm the health of steps alone shows.
void add_harm(Finding& f, const std::map<std::uint32_t, HealthWatch::Harm>& harms) {
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
  f.evidence.push_back(fmt::format("At the end of step {} there was what is not finite in {}: {}.", harm->first,
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

void report_unheard(std::vector<Finding>& findings, const HealthWatch& health, const std::vector<Growth>& growths,
                    const RankVerdict& others, bool trained) {
  for (Finding& f : findings) {
    add_harm(f, health.harms());
    if (!f.place.op && f.cls != FindingClass::kExploding) continue;
    const auto why = health.unheard().find(f.place.step);
    if (why == health.unheard().end()) continue;
    f.evidence.push_back(fmt::format("Step {} was not heard: {}", f.place.step, reason_of(why->second)));
  }
  for (std::size_t i = 0; i < health.riddles().size(); ++i) {
    const Riddle& riddle = health.riddles()[i];
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
    if (others.carried_steps.contains(i)) continue;
    if (validates_again(findings, riddle, trained)) continue;
    Finding f = finding_of(riddle, trained);
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
