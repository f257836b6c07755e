// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/step_judge.h"

#include <algorithm>
#include <utility>

namespace nanhunt::hunt {
namespace {

constexpr std::uint32_t kFirstShown = 8;     // narrow parameters: healthy steps that are shown from the beginning
constexpr std::uint32_t kShownEvery = 64;    // ... and one of so many later
constexpr std::uint32_t kMostShown = 16;     // of a run
constexpr std::uint32_t kMostSwallowed = 8;  // steps of a run that are kept for what went bad in them and did no harm
constexpr std::size_t kMostSteps = 256;      // whose row was not taken yet
constexpr std::size_t kMostSince = 64;       // losses after a boundary whose names are remembered

}  // namespace

StepState ended_by(StepEnding ending) {
  switch (ending) {
    case StepEnding::kOptimizer:
    case StepEnding::kForward: return StepState::kEnded;
    case StepEnding::kNextForward: return StepState::kGivenUp;
    case StepEnding::kException: return StepState::kException;
    case StepEnding::kExit:
    case StepEnding::kEnd: break;
  }
  return StepState::kExited;
}

void StepJudge::pass(StepState state) {
  if (state == StepState::kForward) ++calls_;
  if (state == StepState::kScaled) scale_ = Scale::kOn;
  if (state == StepState::kUnscaled) scale_ = Scale::kOff;
  if (state == StepState::kBackward) ++backwards_;
  if (state == StepState::kLoss) {
    ++losses_;
    gradients_ = Gradients::kAdded;
  }
  if (is_open()) {
    state_ = std::max(state_, state);
  } else if (state == StepState::kSuspect || state == StepState::kForward || state == StepState::kOptimizer) {
    state_ = state;
  }
}

void StepJudge::restart() {
  state_ = StepState::kBegun;
  backwards_ = 0;
}

StepJudge::Reads StepJudge::reads_gradients(std::uint32_t step, bool last, bool written) {
  const bool again = gradients_ == Gradients::kRead;
  if (again && ((!last && !written) || verdict(step).bad != 0)) return Reads::kNot;
  gradients_ = Gradients::kRead;
  return again ? Reads::kAgain : Reads::kFirst;
}

StepJudge::GivesUp StepJudge::gives_up() const {
  if (!is_open() || state_ >= StepState::kOptimizer || !is_usual()) return GivesUp::kNo;
  if (state_ == StepState::kRaised) return GivesUp::kYes;
  return backwards_ == 0 ? GivesUp::kIfBadNumber : GivesUp::kNo;
}

bool StepJudge::left_batch_out() const {
  const auto more_than = [&](std::uint32_t calls, std::uint32_t backwards) {
    return std::uint64_t{calls_} * backwards > std::uint64_t{backwards_} * calls;
  };
  return backwards_ != 0 && (more_than(usual_calls_, usual_backwards_) ||
                             more_than(usual_calls_before_, usual_backwards_before_));
}

StepVerdict& StepJudge::verdict(std::uint32_t step) {
  while (steps_.size() >= kMostSteps && !steps_.contains(step)) steps_.erase(steps_.begin());
  return steps_[step].verdict;
}

void StepJudge::note(std::uint32_t step, TensorRole role, std::string_view path) {
  verdict(step).note(role, path);
  Judged& judged = steps_[step];
  if (role == TensorRole::kOutput) judged.at_boundary.note(role, path);  // a validation is no part of what is trained
  std::vector<std::string>& since = judged.since;
  if (role == TensorRole::kLoss && since.size() < kMostSince) since.emplace_back(path);
}

void StepJudge::pass_boundary(std::uint32_t step) {
  Judged& judged = steps_[step];
  judged.at_boundary = judged.verdict;
  judged.since.clear();
}

Consequence StepJudge::judge(std::uint32_t step, Harm harm) {
  switch (policy_.judge(step, harm)) {
    case Trigger::kNone: return Consequence::kNothing;
    case Trigger::kTaken: return Consequence::kTaken;
    case Trigger::kWaits: left_out_ = true; return Consequence::kNothing;
    case Trigger::kSpent: break;
  }
  left_out_ = true;
  const bool told = last_spent_ && step <= *last_spent_ + 1;
  last_spent_ = step;
  return told ? Consequence::kNothing : Consequence::kSpent;
}

bool StepJudge::shows(std::uint32_t step, bool narrow) const {
  if (!narrow) return shown_ == 0;
  return shown_ < kMostShown && (shown_ < kFirstShown || step % kShownEvery == 0);
}

bool StepJudge::keeps(std::uint32_t step, bool left_bad, bool swallowed) {
  if (left_bad && judge(step, Harm::kHarm) == Consequence::kTaken) return true;
  // The step after one is judged without: by then it is known where harmless infinities come from.
  if (!swallowed || swallowed_ >= kMostSwallowed || (last_swallowed_ && step <= *last_swallowed_ + 1)) return false;
  ++swallowed_;
  last_swallowed_ = step;
  return true;
}

Fate StepJudge::end_held(std::uint32_t step, bool kept, bool narrow) {
  if (kept) return Fate::kKept;
  if (!shows(step, narrow)) return Fate::kDropped;
  ++shown_;
  return Fate::kShown;
}

bool StepJudge::was_left_out() { return std::exchange(left_out_, false); }

void StepJudge::end(StepEnding ending, bool overran) {
  if (ending == StepEnding::kOptimizer) {
    usual_calls_before_ = std::exchange(usual_calls_, calls_);
    usual_backwards_before_ = std::exchange(usual_backwards_, backwards_);
  }
  calls_ = backwards_ = 0;
  state_ = ended_by(ending);
  if (overran) return;
  gradients_ = Gradients::kUnread;
  scale_ = Scale::kOff;
  losses_ = 0;
}

void StepJudge::carry_over(std::uint32_t step) {
  verdict(step + 1).kept = verdict(step).kept;
  Judged& judged = steps_[step];
  judged.carried_over = true;
  for (const std::string& path : std::exchange(judged.since, {})) note(step + 1, TensorRole::kLoss, path);
}

StepVerdict StepJudge::take(std::uint32_t step, bool whole) {
  Judged judged = std::exchange(steps_[step], {});
  steps_.erase(step);
  return judged.carried_over && !whole ? std::move(judged.at_boundary) : std::move(judged.verdict);
}

}  // namespace nanhunt::hunt
