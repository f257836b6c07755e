// SPDX-License-Identifier: Apache-2.0
// What follows when a step was bad: norms of the steps before, what changed unseen, the replay. That is rare, and may
// wait for a device.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "hooks/engine/host_contents.h"
#include "hooks/engine/op_adapter.h"
#include "hooks/engine/replay/step_replay.h"
#include "hooks/engine/sentinel/sentinel.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::hooks {
namespace {

using record::ScopedDefaultFpEnvironment;

}  // namespace

hunt::Harm Sentinel::harm(const Step& step) const { return step.verdict.harm(holds_back(trainer_)); }

bool Sentinel::trigger(Step& step, Moment moment) {
  if (answers_at_once()) report_changes(step);
  const hunt::AfterBadStep next = policy_.judge(step.number, harm(step));
  if (!next.anything) return false;
  absorb(step, /*wait=*/true);
  report_changes(step);
  if (moment == Moment::kAfter && !answers_at_once()) look_for_changes_in_copy(step);
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
void Sentinel::look_for_changes(Step& step, std::initializer_list<Part> parts, bool in_batch) {
  ReadGroup now;
  std::vector<Watched*> unwritten;
  for (const Part part : parts) {
    for (Watched& watched : list_of(part)) {
      if (!watched.last.known || watched.asked_version != watched.tensor.version()) continue;
      now.add(watched.tensor, Wanted::kChecksum);
      unwritten.push_back(&watched);
    }
  }
  std::vector<Loaded*> loaded;
  for (Loaded& one : step.loaded) {
    if (!in_batch || !one.reading.known || one.tensor.version() != one.version) continue;  // written, and so not replayed
    now.add(one.tensor, Wanted::kChecksum);
    loaded.push_back(&one);
  }
  if (now.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  now.ask(device_.get());
  now.wait();
  for (std::size_t i = 0; i < unwritten.size(); ++i) {
    Watched& watched = *unwritten[i];
    if (!now[i].known || now[i].checksum == watched.last.checksum) continue;
    watched.changed = true;
    watched.last = answers_at_once() ? read(watched.tensor, Wanted::kAll) : now[i];
    if (watched.is_bad() && !watched.noted) {
      note(step, watched);
    } else {
      ++step.verdict.bad_tensors;
    }
    step.verdict.note_changed(watched.path);
  }
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const Reading& reading = now[unwritten.size() + i];
    loaded[i]->changed = reading.known && reading.checksum != loaded[i]->reading.checksum;
    if (loaded[i]->changed) step.verdict.bad |= kHealthChanged;
  }
}

void Sentinel::report_changes(Step& step) {
  // Versions are those that the newest step asked for.
  if (&step != &steps_.back() || std::exchange(step.changes_reported, true)) return;
  if (answers_at_once()) {
    look_for_changes(step, {}, /*in_batch=*/true);  // all else was looked at when the step began, and at its boundary
  } else {
    look_for_changes(step, {Part::kParameter, Part::kState, Part::kBuffer}, /*in_batch=*/true);
  }
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (watched.changed) report_change(step, watched, watched.read_in);
    }
  }
  for (const Loaded& loaded : step.loaded) {
    if (!loaded.changed) continue;
    ChangedEvent event;
    event.step = step.number;
    event.value = view_of(loaded.tensor, loaded.tensor.version());
    event.since_step = step.number;
    recorder_.on_changed(event);
  }
}

void Sentinel::report_change(const Step& step, const Watched& watched, std::uint32_t since) {
  ChangedEvent event;
  event.step = step.number;
  event.value = view_of(watched.tensor, watched.tensor.version());
  event.since_step = since;
  recorder_.on_changed(event);
  recorder_.on_mark({step.number, step.micro_batch, watched.kind, watched.path, event.value});  // what it is called
}

// What the optimizer wrote over since is still there as it was at the optimizer boundary. It is reported when the replay
// has put it back.
void Sentinel::look_for_changes_in_copy(Step& step) {
  changed_in_copy_.clear();
  if (copied_in_ != step.number) return;
  std::vector<TensorView> views;
  std::vector<Watched*> kept;
  for (auto* list : {&parameters_, &state_}) {
    for (Watched& watched : *list) {
      const engine::OptimizerCopy::Kept copy = copy_.kept(watched.tensor);
      const bool comparable = copy.contents.data != nullptr && watched.before.known &&
                              watched.asked_before == copy.version && !watched.tensor.device().is_cpu() &&
                              is_floating(watched.tensor.dtype());
      if (!comparable) continue;
      views.push_back(copy.contents);
      kept.push_back(&watched);
    }
  }
  if (views.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  std::vector<std::optional<TensorStats>> found(views.size());
  device_->wait(device_->enqueue(views), found);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    Watched& watched = *kept[i];
    if (!found[i]) continue;
    const Reading now = reading_of(*found[i]);
    if (now.checksum == watched.before.checksum) continue;
    changed_in_copy_.push_back(&watched);
    if (!now.finite) {
      note(step, watched);
    } else {
      ++step.verdict.bad_tensors;
    }
    step.verdict.note_changed(watched.path);
  }
}

// A parameter went bad although the audit had proved that it cannot: what its state now holds beyond what was proved
// came there unseen.
void Sentinel::look_for_the_impossible(Step& step) {
  constexpr double kRounding = 1.001;
  const ScopedDefaultFpEnvironment environment;
  for (std::size_t i = 0; i < optimized_; ++i) {
    const OptimizerAudit::Audited& audited = audit_.audited()[i];
    if (parameters_[i].last.finite || audited.proved_in != step.number) continue;
    const auto look = [&](const engine::Tensor& tensor, double bound, bool may_be_negative) {
      if (!tensor.defined()) return;
      const ScopedHostContents contents;
      const TensorStats stats = compute_stats(host_view(tensor), StatsLevel::kCounts);
      const bool possible = stats.nonfinite() == 0 && !(stats.amax > bound * kRounding) &&
                            (may_be_negative || !(stats.min < 0));
      if (possible) return;
      const auto found = std::find_if(state_.begin(), state_.end(),
                                      [&](const Watched& watched) { return watched.tensor.impl() == tensor.impl(); });
      if (found == state_.end()) return;
      found->changed = true;
      step.verdict.bad |= kHealthChanged;
      ++step.verdict.bad_tensors;
    };
    look(audited.master, audited.memory.param, true);
    look(audited.first, audited.memory.first, true);
    look(audited.second, std::numeric_limits<double>::infinity(), false);
  }
}

// Which is not read every step where it is large.
void Sentinel::read_state(Step& step) {
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
void Sentinel::audit_in_hindsight(Step& step) {
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
    if (!has_bad || !step.gradients[i].is_stepped) continue;
    const std::optional<hunt::PreAudit> found = audit_.in_hindsight(i, copy_);
    if (found && found->triggers()) step.verdict.note_audited(parameters_[i].path);
  }
}

std::vector<hunt::StepFact> Sentinel::facts(const Step& step, Moment moment) const {
  const ScopedDefaultFpEnvironment environment;
  std::vector<hunt::StepFact> all;
  const auto add = [&](TensorRole kind, const std::string& path, const Reading& reading) {
    if (reading.known) all.push_back({kind, path, reading.finite, reading.checksum});
  };
  for (const Loss& loss : step.losses) add(TensorRole::kLoss, loss.name, loss.reading);
  for (std::size_t i = 0; i < optimized_; ++i) {
    Reading reading = step.gradients[i].reading;
    if (answers_at_once() && reading.known) {  // for its norm: the checksum takes another pass
      const engine::Tensor gradient = trainer_.optimizer().gradient(i);
      if (!gradient.defined()) continue;
      reading.checksum = checksum_of(gradient);
    }
    add(TensorRole::kBoundaryGradient, parameters_[i].path, reading);
  }
  if (moment == Moment::kBoundary) return all;
  for (std::size_t i = 0; i < optimized_; ++i) {
    if (step.gradients[i].is_stepped) add(TensorRole::kParameter, parameters_[i].path, parameters_[i].last);
  }
  for (const Watched& watched : state_) add(watched.kind, watched.path, watched.last);
  for (const Loss& validated : step.validated) add(TensorRole::kOutput, validated.name, validated.reading);
  return all;
}

void Sentinel::replay(Step& step, Moment moment) {
  // The trainer runs again what it ran last.
  if (&step != &steps_.back() || step.number + (step.over ? 1 : 0) != trainer_.next_step()) {
    return refuse(step,
                  fmt::format("The step was not replayed: the device told what was bad when step {} was under way.",
                              trainer_.next_step() - (steps_.back().over ? 1 : 0)));
  }
  const std::vector<hunt::StepFact> original = facts(step, moment);
  const auto refused =
      run_again(trainer_, recorder_,
                {.step = step.number, .verdict = step.verdict, .original = original,
                 .before = copied_in_ == step.number ? &copy_ : nullptr, .readings = device_.get(),
                 .before_begin = [&] {
                   for (const Watched* watched : changed_in_copy_) report_change(step, *watched, watched->before_read_in);
                   changed_in_copy_.clear();
                 }});
  if (refused) refuse(step, *refused);
}

// Without a replay the analyzer has at least what is bad now. The refusal comes first: it says how the marks are to be
// read, and they may be in a later batch.
void Sentinel::refuse(const Step& step, const std::string& why) {
  recorder_.on_replay(step.verdict.replayed(step.number, ReplayResult::kRefused, why));
  const auto mark = [&](TensorRole kind, const std::string& path, const engine::Tensor& tensor) {
    recorder_.on_mark({step.number, step.micro_batch, kind, path, view_of(tensor, tensor.version())});
  };
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (watched.is_bad()) mark(watched.kind, watched.path, watched.tensor);
    }
  }
  if (&step != &steps_.back()) return;  // gradients and batches are those of another step by now
  for (std::size_t i = 0; i < optimized_; ++i) {
    const engine::Tensor gradient = trainer_.optimizer().gradient(i);
    if (step.gradients[i].reading.finite || !gradient.defined()) continue;
    mark(TensorRole::kBoundaryGradient, parameters_[i].path, gradient);
  }
  for (const Loaded& loaded : step.loaded) {
    if (!loaded.reading.finite) mark(loaded.kind, loaded.path, loaded.tensor);
  }
}

}  // namespace nanhunt::hooks
