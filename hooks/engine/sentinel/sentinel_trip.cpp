// SPDX-License-Identifier: Apache-2.0
// What follows when a watched quantity is bad: norms of the steps before, what changed unseen, the replay.
#include <fmt/format.h>

#include "hooks/engine/replay/replay_record.h"
#include "hooks/engine/sentinel/sentinel.h"

namespace nanhunt::hooks {
namespace {

}  // namespace

hunt::Harm Sentinel::harm() const {
  if ((bad_ & ~kLoadedBits) == 0) return hunt::Harm::kNone;  // what was loaded has done nothing so far
  const engine::GradScaler* scaler = trainer_.scaler();
  const bool held_back = scaler != nullptr && scaler->is_enabled() && scaler->options().dynamic;
  return held_back && !kept_ && bad_ == role_bit(TensorRole::kBoundaryGradient) ? hunt::Harm::kScaled : hunt::Harm::kHarm;
}

// The first cause that was found in the order of the step.
ReplayTrigger Sentinel::trigger() const {
  if ((bad_ & kHealthChanged) != 0) return ReplayTrigger::kChanged;
  if (!first_kind_) return ReplayTrigger::kAudit;
  switch (*first_kind_) {
    case TensorRole::kLoss: return ReplayTrigger::kLoss;
    case TensorRole::kBoundaryGradient: return ReplayTrigger::kGradient;
    case TensorRole::kParameter: return ReplayTrigger::kParameter;
    case TensorRole::kState: return ReplayTrigger::kState;
    case TensorRole::kBuffer: return ReplayTrigger::kBuffer;
    case TensorRole::kBatch:
    case TensorRole::kLabel: return ReplayTrigger::kBatch;
  }
  return ReplayTrigger::kUser;
}

void Sentinel::trigger(bool after_optimizer) {
  report_changes();
  const hunt::Trigger answer = policy_.judge(step_, harm());
  if (answer == hunt::Trigger::kNone || answer == hunt::Trigger::kWaits) return;
  if (answer == hunt::Trigger::kSpent) {
    const bool told = last_spent_ && step_ <= *last_spent_ + 1;  // once a streak
    last_spent_ = step_;
    if (told) return;
  }
  norms_.write([&](std::uint32_t step, const NormRing::Row& row) {
    recorder_.on_norm({step, row.kind, parameters_[row.index].path, row.norm, row.amax});
  });
  if (answer == hunt::Trigger::kSpent) {
    return refuse(fmt::format("No replay is left for this step: {} of at most {} were made, and half of them are kept "
                              "from steps that the loss scaler skips.",
                              policy_.triggers(), options_.max_triggers));
  }
  if (!options_.replay) return refuse("Replays are switched off (WatchOptions::replay).");
  replay(after_optimizer);
}

void Sentinel::report_changes() {
  if (changes_reported_) return;
  changes_reported_ = true;
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (!watched.changed) continue;
      ChangedEvent event;
      event.step = step_;
      event.value = view_of(watched.tensor, watched.tensor.version());
      event.since_step = watched.read_in;
      recorder_.on_changed(event);
      recorder_.on_mark({step_, micro_batch_, watched.kind, watched.path, event.value});  // what it is called
    }
  }
  for (const Loaded& loaded : loaded_) {
    if (loaded.tensor.version() != loaded.reading.version) continue;  // written, and so not replayed
    if (checksum_of(loaded.tensor) == loaded.reading.checksum) continue;
    bad_ |= kHealthChanged;
    ChangedEvent event;
    event.step = step_;
    event.value = view_of(loaded.tensor, loaded.tensor.version());
    event.since_step = step_;
    recorder_.on_changed(event);
  }
}

std::vector<hunt::StepFact> Sentinel::facts(bool after_optimizer) const {
  std::vector<hunt::StepFact> all = losses_;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const engine::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradients_[i].known || !gradient.defined()) continue;
    all.push_back({TensorRole::kBoundaryGradient, parameters_[i].path, gradients_[i].finite, checksum_of(gradient)});
  }
  if (!after_optimizer) return all;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const Watched& watched = parameters_[i];
    if (gradients_[i].known) all.push_back({watched.kind, watched.path, watched.last.finite, watched.last.checksum});
  }
  for (const Watched& watched : state_) {
    all.push_back({watched.kind, watched.path, is_finite(watched.tensor), checksum_of(watched.tensor)});
  }
  return all;
}

void Sentinel::replay(bool after_optimizer) {
  const std::vector<hunt::StepFact> original = facts(after_optimizer);
  ReplayRecord record(recorder_, trigger(), trainer_.options().micro_batches > 1);
  const engine::Replayed replayed = trainer_.replay(record, copied_ ? &copy_ : nullptr);
  if (!replayed.ran) {
    return refuse(fmt::format("{}: {}.", record.began() ? "The replay did not end" : "The step was not replayed",
                              replayed.refused));
  }
  const hunt::ReplayComparison comparison = compare_replay(original, record.facts());
  ReplayEvent event;
  event.step = step_;
  event.trigger = trigger();
  event.result = comparison.result;
  event.text = comparison.text;
  recorder_.on_replay(event);
}

// Without a replay the analyzer has at least what is bad now. The refusal comes first: it says how the marks are to be
// read, and they may be in a later batch.
void Sentinel::refuse(const std::string& why) {
  ReplayEvent event;
  event.step = step_;
  event.trigger = trigger();
  event.result = ReplayResult::kRefused;
  event.text = why;
  recorder_.on_replay(event);
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (!watched.is_bad()) continue;
      recorder_.on_mark({step_, micro_batch_, watched.kind, watched.path,
                         view_of(watched.tensor, watched.tensor.version())});
    }
  }
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const engine::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradients_[i].known || gradients_[i].finite || !gradient.defined()) continue;
    recorder_.on_mark({step_, micro_batch_, TensorRole::kBoundaryGradient, parameters_[i].path,
                       view_of(gradient, gradient.version())});
  }
  for (const Loaded& loaded : loaded_) {
    if (loaded.reading.finite) continue;
    recorder_.on_mark({step_, micro_batch_, loaded.kind, loaded.path, view_of(loaded.tensor, loaded.tensor.version())});
  }
}

}  // namespace nanhunt::hooks
