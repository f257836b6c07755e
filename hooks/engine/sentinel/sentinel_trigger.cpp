// SPDX-License-Identifier: Apache-2.0
// What follows when a watched quantity is bad: norms of the steps before, what changed unseen, the replay.
#include "hooks/engine/replay/step_replay.h"
#include "hooks/engine/sentinel/sentinel.h"

namespace nanhunt::hooks {
void Sentinel::trigger(bool after_optimizer) {
  report_changes();
  const hunt::AfterBadStep next = policy_.judge(step_, verdict_.harm(holds_back(trainer_)));
  if (!next.anything) return;
  norms_.write([&](std::uint32_t step, const NormRing::Row& row) {
    recorder_.on_norm({step, row.kind, parameters_[row.index].path, row.norm, row.amax});
  });
  if (!next.refusal.empty()) return refuse(next.refusal);
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
    verdict_.bad |= kHealthChanged;
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
  const auto refused = run_again(trainer_, recorder_,
                                 {.step = step_, .verdict = verdict_, .original = original,
                                  .before = copied_ ? &copy_ : nullptr});
  if (refused) refuse(*refused);
}

// Without a replay the analyzer has at least what is bad now. The refusal comes first: it says how the marks are to be
// read, and they may be in a later batch.
void Sentinel::refuse(const std::string& why) {
  recorder_.on_replay(verdict_.replayed(step_, ReplayResult::kRefused, why));
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
