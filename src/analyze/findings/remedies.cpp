// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/remedies.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "src/analyze/wording/advice.h"

namespace nanhunt::analyze {
namespace {

// They suppose what the numbers do not show: a count, a mask, a constant, a softmax, a sigmoid, exponentials before the op.
constexpr std::string_view kOfARule[] = {"clamp-count", "finite-log-zero",    "finite-mask", "log-softmax",
                                          "raise-eps",   "select-argument",    "select-first", "stay-in-logarithms",
                                          "with-logits"};

struct Trial {
  std::string_view id, what;
  const ProbeRecord* record = nullptr;
};

std::vector<Trial> trials_of(const std::vector<ProbeRecord>& probes, const Case& c) {
  std::vector<Trial> trials;
  for (const ProbeRecord& probe : probes) {
    if (probe.mode != ProbeMode::kRemedy || !probe.ran) continue;
    const std::string_view text = c.text(probe.text);
    const std::size_t end = text.find(": ");
    if (end == std::string_view::npos) continue;
    const Trial trial{text.substr(0, end), text.substr(end + 2), &probe};
    // What was lost before the op, a wider format would have kept there.
    if (trial.id == "fp32-compute" && c.zero.cause != ZeroCause::kExact) continue;
    trials.push_back(trial);
  }
  return trials;
}

}  // namespace

void add_trials(std::vector<Advice>& advice, const std::vector<ProbeRecord>& probes, const Case& c) {
  const std::vector<Trial> trials = trials_of(probes, c);
  if (trials.empty()) return;
  const auto is_of = [](const Advice& one, const Trial& trial) { return one.id == trial.id; };
  for (const Trial& trial : trials) {
    for (Advice& one : advice) {
      if (is_of(one, trial)) add_trial(one, *trial.record, trial.what);
    }
  }
  const auto is_finite = [](const Advice& one) { return tried(one) == Tried::kOnTheseNumbers; };
  const auto failed = [](const Advice& one) { return tried(one) == Tried::kFailed; };
  if (std::none_of(advice.begin(), advice.end(), is_finite) && std::any_of(advice.begin(), advice.end(), failed)) {
    for (const Trial& trial : trials) {
      const bool known = std::any_of(advice.begin(), advice.end(), [&](const Advice& one) { return is_of(one, trial); });
      const bool lost = c.zero.cause == ZeroCause::kGuardLost && trial.id == "raise-eps";
      const bool of_a_rule = std::find(std::begin(kOfARule), std::end(kOfARule), trial.id) != std::end(kOfARule);
      if (known || (of_a_rule && !lost)) continue;
      Advice other = make_advice(trial.id);
      add_trial(other, *trial.record, trial.what);
      if (!other.why.empty() && is_finite(other)) advice.push_back(std::move(other));
    }
  }
  put_tried_first(advice);
}

}  // namespace nanhunt::analyze
