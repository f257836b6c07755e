// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/sentinel_watch.h"

#include <fmt/format.h>

#include <utility>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::uint32_t kWatchBits = kHealthAudit | kHealthChanged;

}  // namespace

bool SentinelWatch::Riddle::tried() const {
  return replay && (replay->result == ReplayResult::kClean || replay->result == ReplayResult::kDiffers);
}

bool SentinelWatch::Riddle::local() const { return (bad & ~(kGradientBit | kLastingBits) & ~kWatchBits) != 0; }

void SentinelWatch::on_health(const HealthRecord& record) { pending_ = record; }

void SentinelWatch::on_replay(const ReplayRecord& record) {
  if (record.result == ReplayResult::kBegin) ++replays_begun_;
  if (record.result == ReplayResult::kRefused) ++refusals_;
  if (replays_.size() >= kMaxReplays && !replays_.contains(record.step)) return;
  Replay& replay = replays_[record.step];
  // A step can be replayed at the optimizer boundary and once more after its optimizer; a refusal says nothing against what was
  // replayed.
  const bool replayed = replay.result != ReplayResult::kBegin && replay.result != ReplayResult::kRefused;
  if (replayed && (record.result == ReplayResult::kBegin || record.result == ReplayResult::kRefused)) return;
  replay = {record.trigger, record.result, names_.text(record.text)};
}

bool SentinelWatch::was_refused(std::uint32_t step) const {
  const auto it = replays_.find(step);
  return it != replays_.end() && it->second.result == ReplayResult::kRefused;
}

bool SentinelWatch::on_step_end(const StepRecord& step, const StepOutcome& outcome, ValueGraph& graph) {
  now_.reset();
  if (!pending_ || pending_->step != step.step) return false;
  now_ = std::exchange(pending_, std::nullopt);
  const HealthRecord& health = *now_;
  ++steps_;
  graph.on_clean_parts(step.step, kLastingBits & ~health.bad);
  const bool bad = (health.bad & kSinkBits) != 0;
  if ((health.bad & kLastingBits) != 0 && harms_.size() < kMaxHarms)
    harms_.try_emplace(step.step, Harm{health.bad, health.bad_tensors, names_.text(health.first_bad)});
  if (!bad) {
    if (open_ && !outcome.held_back) {
      for (Riddle& riddle : riddles_) {
        if (!riddle.ended) riddle.good_scale = outcome.scale;
        riddle.ended = true;
      }
      open_ = false;
    }
    return false;
  }
  if ((health.bad & role_bit(TensorRole::kParameter)) != 0) graph.hit_bad_homes();
  // Its records show it.
  const bool validation_alone = (health.bad & kSinkBits) == role_bit(TensorRole::kOutput);
  if (graph.step_is_bad() || (validation_alone && graph.validation_is_bad())) return false;
  // The program has tried weights and taken them back, or does so in each step.
  if (validation_alone && (graph.took_back() || graph.take_back_again(step.step))) return false;
  const auto replay = replays_.find(step.step);
  const bool clean_replay = replay != replays_.end() && (replay->second.result == ReplayResult::kClean ||
                                                         replay->second.result == ReplayResult::kDiffers);
  if (open_ && is_another(riddles_.back(), clean_replay ? &replay->second : nullptr)) open_ = false;
  if (!open_ && !clean_replay && graph.on_unreplayed(step.step, health.bad, outcome.changed_nothing())) return false;
  if (!open_) {
    if (riddles_.size() >= kMaxRiddles) {
      ++riddles_left_out_;
      return true;
    }
    open_ = true;
    Riddle riddle;
    riddle.first = step.step;
    riddle.bad = health.bad;
    riddle.bad_tensors = health.bad_tensors;
    riddle.first_path = names_.text(health.first_bad);
    riddle.scale = outcome.scale;
    if (replay != replays_.end()) riddle.replay = replay->second;
    riddles_.push_back(std::move(riddle));
  }
  Riddle& riddle = riddles_.back();
  riddle.last = step.step;
  ++riddle.count;
  if (clean_replay) ++riddle.replayed;
  riddle.all_bad |= health.bad;
  riddle.held_back = riddle.held_back && outcome.changed_nothing();
  riddle.scaled = riddle.scaled && outcome.scaled;
  return true;
}

// Does the bad step at hand have a story of its own, beside that of the open riddle? `clean`: its replay, where that
// showed nothing bad. What an optimizer took in can spread to anything; what was held back spreads to nothing.
bool SentinelWatch::is_another(const Riddle& open, const Replay* clean) const {
  if (clean != nullptr) return !open.replay || open.replay->result != clean->result;
  return open.held_back && (now_->bad & kSinkBits & ~open.all_bad) != 0;
}

// `level_helps`: the same run at level ops would see more.
void SentinelWatch::fill_coverage(Coverage& coverage, const std::string& level, bool level_helps,
                                  bool all_heard) const {
  if (!seen()) return;
  if (all_heard) {
    coverage.unwatched.push_back("Updates that rounding lost, in most healthy steps (level ops sees them).");
  } else {
    coverage.unwatched.push_back(fmt::format("Operations of steps that were not {}{}.",
                                             level == "live" || level == "steps" ? "heard" : "replayed",
                                             level.empty() ? "" : fmt::format(" (level {})", level)));
    coverage.unwatched.push_back(
        fmt::format("Infinities that an operation swallowed and updates that rounding lost, in those steps{}.",
                    level_helps ? " (level ops sees them)" : ""));
  }
  if (!coverage.clean_end) coverage.unwatched.emplace_back("The step that was under way when the trace ends.");
  if (refusals_ > 0) {
    std::string why;
    for (const auto& [step, replay] : replays_) {
      if (why.empty() && replay.result == ReplayResult::kRefused) why = fmt::format(" Step {}: {}", step, replay.text);
    }
    coverage.unwatched.push_back(
        fmt::format("{} that could not be replayed.{}", count_of(static_cast<std::int64_t>(refusals_), "bad step"),
                    why));
  }
  if (riddles_left_out_ > 0)
    coverage.unwatched.push_back(fmt::format("{} further bad steps without a replay.", riddles_left_out_));
}

}  // namespace nanhunt::analyze
