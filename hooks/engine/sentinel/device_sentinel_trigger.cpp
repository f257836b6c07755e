// SPDX-License-Identifier: Apache-2.0
// What follows when a step on a device was bad. That is rare, and may wait for the device.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "hooks/engine/sentinel/device_sentinel.h"
#include "hooks/engine/replay/step_replay.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::hooks {
namespace {

using record::ScopedDefaultFpEnvironment;

}  // namespace

hunt::Harm DeviceSentinel::harm(const Step& step) const { return step.verdict.harm(holds_back(trainer_)); }

bool DeviceSentinel::trigger(Step& step, Moment moment) {
  const hunt::AfterBadStep next = policy_.judge(step.number, harm(step));
  if (!next.anything) return false;
  absorb(step, /*wait=*/true);
  look_for_changes(step);
  if (moment == Moment::kAfter) look_for_changes_in_copy(step);
  if (moment == Moment::kAfter && !close_) read_state(step);
  if (moment == Moment::kAfter) {
    try {
      audit_in_hindsight(step);
    } catch (...) {  // no memory for its copies, say: the trigger goes on without it
    }
  }
  norms_.write([&](std::uint32_t number, const NormRing::Row& row) {
    recorder_.on_norm({number, row.kind, parameters_[row.index].path, row.norm, row.amax});
  });
  if (!next.refusal.empty()) {
    refuse(step, next.refusal);
    return false;
  }
  replay(step, moment);
  return true;
}

// Contents that are not as they were read, though their version says that nothing wrote them.
void DeviceSentinel::look_for_changes(Step& step) {
  // Versions are those that the newest step asked for.
  if (step.changes_looked_for || &step != &steps_.back()) return;
  step.changes_looked_for = true;
  DeferredGroup late;
  std::vector<Watched*> unwritten;
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) {
      if (!watched.last || watched.asked_version != watched.tensor.version()) continue;
      late.add(watched.tensor);
      unwritten.push_back(&watched);
    }
  }
  const std::size_t loaded_at = late.size();
  std::vector<const Loaded*> loaded;
  for (const Loaded& one : step.loaded) {
    if (!one.stats || one.tensor.version() != one.version) continue;  // written, and so not replayed
    late.add(one.tensor);
    loaded.push_back(&one);
  }
  if (late.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  late.ask(*readings_);
  late.wait(*readings_);
  for (std::size_t i = 0; i < unwritten.size(); ++i) {
    Watched& watched = *unwritten[i];
    if (!late[i] || fingerprint(*late[i]) == fingerprint(*watched.last)) continue;
    watched.changed = true;
    watched.last = late[i];
    if (watched.is_bad() && !watched.noted) {
      note(step, watched);
    } else {
      ++step.verdict.bad_tensors;
    }
    step.verdict.note_changed(watched.path);
    report_change(step, watched, watched.read_in);
  }
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const std::optional<TensorStats>& now = late[loaded_at + i];
    if (!now || fingerprint(*now) == fingerprint(*loaded[i]->stats)) continue;
    step.verdict.bad |= kHealthChanged;
    ChangedEvent event;
    event.step = step.number;
    event.value = view_of(loaded[i]->tensor, loaded[i]->tensor.version());
    event.since_step = step.number;
    recorder_.on_changed(event);
  }
}

void DeviceSentinel::report_change(const Step& step, const Watched& watched, std::uint32_t since) {
  ChangedEvent event;
  event.step = step.number;
  event.value = view_of(watched.tensor, watched.tensor.version());
  event.since_step = since;
  recorder_.on_changed(event);
  recorder_.on_mark({step.number, step.micro_batch, watched.kind, watched.path, event.value});  // what it is called
}

// What the optimizer wrote over since is still there as it was at the optimizer boundary. It is told when the replay has put it back.
void DeviceSentinel::look_for_changes_in_copy(Step& step) {
  changed_in_copy_.clear();
  if (copied_in_ != step.number) return;
  std::vector<TensorView> views;
  std::vector<Watched*> kept;
  for (auto* list : {&parameters_, &state_}) {
    for (Watched& watched : *list) {
      const engine::OptimizerCopy::Kept copy = copy_.kept(watched.tensor);
      const bool comparable = copy.contents.data != nullptr && watched.before && watched.asked_before == copy.version &&
                              !watched.tensor.device().is_cpu() && is_floating(watched.tensor.dtype());
      if (!comparable) continue;
      views.push_back(copy.contents);
      kept.push_back(&watched);
    }
  }
  if (views.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  std::vector<std::optional<TensorStats>> found(views.size());
  readings_->wait(readings_->enqueue(views), found);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    Watched& watched = *kept[i];
    if (!found[i] || fingerprint(*found[i]) == fingerprint(*watched.before)) continue;
    changed_in_copy_.push_back(&watched);
    if (found[i]->nonfinite() > 0) {
      note(step, watched);
    } else {
      ++step.verdict.bad_tensors;
    }
    step.verdict.note_changed(watched.path);
  }
}

// Which is not read every step where it is large.
void DeviceSentinel::read_state(Step& step) {
  Group group;
  for (std::size_t i = 0; i < state_.size(); ++i) {
    state_[i].asked_version = state_[i].tensor.version();
    add(group, Part::kState, i, state_[i].tensor);
  }
  ask(step, std::move(group));
  absorb(step, /*wait=*/true);
}

// What the pre-audit would have foreseen of the parameters that are bad now, or have bad state: gradients, and the copy
// of what the optimizer wrote over, are still there.
void DeviceSentinel::audit_in_hindsight(Step& step) {
  const bool at_hand = &step == &steps_.back() && copied_in_ == step.number;
  if (step.audited || !at_hand || (step.verdict.bad & role_bit(TensorRole::kBoundaryGradient)) != 0) return;
  step.audited = true;
  std::set<const engine::TensorImpl*> bad;
  for (const auto* list : {&parameters_, &state_}) {
    for (const Watched& watched : *list) {
      if (watched.is_bad()) bad.insert(watched.tensor.impl().get());
    }
  }
  const ScopedDefaultFpEnvironment environment;
  for (std::size_t i = 0; i < optimized_ && i < audit_.audited().size(); ++i) {
    const OptimizerAudit::Audited& it = audit_.audited()[i];
    const bool has_bad = std::ranges::any_of(std::array{&it.parameter, &it.master, &it.first, &it.second},
                                             [&](const engine::Tensor* t) { return bad.contains(t->impl().get()); });
    if (!has_bad || !step.has_gradient[i]) continue;
    const std::optional<hunt::PreAudit> found = audit_.in_hindsight(i, copy_);
    if (found && found->triggers()) step.verdict.note_audited(parameters_[i].path);
  }
}

std::vector<hunt::StepFact> DeviceSentinel::facts(const Step& step, Moment moment) const {
  const ScopedDefaultFpEnvironment environment;
  std::vector<hunt::StepFact> all;
  const auto add = [&](TensorRole kind, const std::string& path, const std::optional<TensorStats>& stats) {
    if (stats) all.push_back({kind, path, stats->nonfinite() == 0, fingerprint(*stats)});
  };
  for (std::size_t i = 0; i < step.losses.size(); ++i) add(TensorRole::kLoss, step.losses[i], step.loss_stats[i]);
  for (std::size_t i = 0; i < optimized_; ++i) {
    add(TensorRole::kBoundaryGradient, parameters_[i].path, step.gradients[i]);
  }
  if (moment == Moment::kBoundary) return all;
  for (std::size_t i = 0; i < optimized_; ++i) {
    if (step.has_gradient[i]) add(TensorRole::kParameter, parameters_[i].path, parameters_[i].last);
  }
  for (const Watched& watched : state_) add(watched.kind, watched.path, watched.last);
  return all;
}

void DeviceSentinel::replay(Step& step, Moment moment) {
  // The trainer runs again what it ran last.
  if (step.number + (step.over ? 1 : 0) != trainer_.next_step()) {
    return refuse(step,
                  fmt::format("The step was not replayed: the device told what was bad when step {} was under way.",
                              trainer_.next_step() - (steps_.back().over ? 1 : 0)));
  }
  const std::vector<hunt::StepFact> original = facts(step, moment);
  const auto refused =
      run_again(trainer_, recorder_,
                {.step = step.number, .verdict = step.verdict, .original = original,
                 .before = copied_in_ == step.number ? &copy_ : nullptr, .readings = readings_.get(),
                 .before_begin = [&] {
                   for (const Watched* watched : changed_in_copy_) report_change(step, *watched, watched->before_read_in);
                   changed_in_copy_.clear();
                 }});
  if (refused) refuse(step, *refused);
}

// Without a replay the analyzer has at least what is bad now. The refusal comes first: it says how the marks are to be
// read, and they may be in a later batch.
void DeviceSentinel::refuse(const Step& step, const std::string& why) {
  recorder_.on_replay(step.verdict.replayed(step.number, ReplayResult::kRefused, why));
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (!watched.is_bad()) continue;
      recorder_.on_mark({step.number, step.micro_batch, watched.kind, watched.path,
                         view_of(watched.tensor, watched.tensor.version())});
    }
  }
  if (&step != &steps_.back()) return;  // gradients and batches are those of another step by now
  for (std::size_t i = 0; i < optimized_; ++i) {
    const engine::Tensor& gradient = parameters_[i].tensor.grad();
    if (!step.gradients[i] || step.gradients[i]->nonfinite() == 0 || !gradient.defined()) continue;
    recorder_.on_mark({step.number, step.micro_batch, TensorRole::kBoundaryGradient, parameters_[i].path,
                       view_of(gradient, gradient.version())});
  }
  for (const Loaded& loaded : step.loaded) {
    if (!loaded.stats || loaded.stats->nonfinite() == 0) continue;
    recorder_.on_mark({step.number, step.micro_batch, loaded.kind, loaded.path,
                       view_of(loaded.tensor, loaded.tensor.version())});
  }
}

}  // namespace nanhunt::hooks
