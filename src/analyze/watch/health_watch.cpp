// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/health_watch.h"

#include <fmt/format.h>

#include <utility>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
bool HealthWatch::Riddle::local() const { return (bad & ~(kGradientBit | kLastingBits)) != 0; }

void HealthWatch::on_health(const HealthRecord& record) { pending_ = record; }

void HealthWatch::on_unheard(const UnheardRecord& record) {
  if (unheard_.contains(record.step)) return;
  ++unheard_steps_;
  if (unheard_.size() < kMaxUnheard) unheard_[record.step] = names_.text(record.text);
}

bool HealthWatch::on_step_end(const StepRecord& step, const StepOutcome& outcome, ValueGraph& graph) {
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
  if (open_ && is_another(riddles_.back())) open_ = false;
  if (!open_ && graph.on_unheard(step.step, health.bad, outcome.changed_nothing())) return false;
  if (!open_) {
    if (riddles_.size() >= kMaxRiddles) {
      ++riddles_left_out_;
      return true;
    }
    open_ = true;
    Riddle riddle;
    riddle.first = step.step;
    riddle.bad = health.bad;
    riddle.first_path = names_.text(health.first_bad);
    riddle.scale = outcome.scale;
    if (const auto why = unheard_.find(step.step); why != unheard_.end()) riddle.why = why->second;
    riddles_.push_back(std::move(riddle));
  }
  Riddle& riddle = riddles_.back();
  riddle.last = step.step;
  ++riddle.count;
  riddle.all_bad |= health.bad;
  riddle.held_back = riddle.held_back && outcome.changed_nothing();
  riddle.scaled = riddle.scaled && outcome.scaled;
  return true;
}

// The bad step at hand has a story of its own, beside that of the open riddle: what an optimizer took in can spread to
// anything; what was held back spreads to nothing.
bool HealthWatch::is_another(const Riddle& open) const {
  return open.held_back && (now_->bad & kSinkBits & ~open.all_bad) != 0;
}

// `level_helps`: the same run at level ops would see more.
void HealthWatch::fill_coverage(Coverage& coverage, const std::string& level, bool level_helps,
                                  bool all_heard) const {
  if (!seen()) return;
  if (all_heard) {
    coverage.unwatched.push_back("Updates that rounding lost, in most healthy steps (level ops sees them).");
  } else {
    coverage.unwatched.push_back(fmt::format("Operations of steps that were not heard{}.",
                                             level.empty() ? "" : fmt::format(" (level {})", level)));
    coverage.unwatched.push_back(
        fmt::format("Infinities that an operation swallowed and updates that rounding lost, in those steps{}.",
                    level_helps ? " (level ops sees them)" : ""));
  }
  if (!coverage.clean_end) coverage.unwatched.emplace_back("The step that was under way when the trace ends.");
  if (unheard_steps_ > 0) {
    const auto& [step, why] = *unheard_.begin();
    coverage.unwatched.push_back(fmt::format("{} whose operations are not known. Step {}: {}",
                                             count_of(static_cast<std::int64_t>(unheard_steps_), "bad step"), step, why));
  }
  if (riddles_left_out_ > 0)
    coverage.unwatched.push_back(fmt::format("{} further bad steps whose operations are not known.", riddles_left_out_));
}

}  // namespace nanhunt::analyze
