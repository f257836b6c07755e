// SPDX-License-Identifier: Apache-2.0
// What is both at in every step; sentinel_trigger.cpp has what follows when it is bad.
#include "hooks/engine/sentinel/sentinel.h"

#include "hooks/engine/host_contents.h"
#include "hooks/engine/replay/step_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nanhunt/tensor_stats.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::hooks {
namespace {

using record::ScopedDefaultFpEnvironment;

}  // namespace

Sentinel::Sentinel(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options)
    : trainer_(trainer),
      recorder_(recorder),
      options_(options),
      policy_({options.max_triggers, options.trigger_distance}, options.replay),
      norms_(options.ring_steps),
      audit_(trainer.optimizer()),
      sampler_(recorder, options) {
  const engine::Optimizer& optimizer = trainer.optimizer();
  std::size_t bytes = 0;
  const auto add = [&](std::vector<Watched>& list, TensorRole kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) {
      bool known = false;
      for (const Watched& watched : list) known = known || watched.tensor.impl() == tensor.impl();
      if (known) continue;
      list.push_back({.kind = kind, .path = path, .tensor = tensor, .last = {}});
      bytes += tensor.storage()->bytes();
    }
  };
  add(parameters_, TensorRole::kParameter, optimizer.parameters());
  gradients_.resize(parameters_.size());
  add(state_, TensorRole::kState, optimizer.named_state());
  close_ = bytes <= options.close_bytes;
  add(parameters_, TensorRole::kParameter, trainer.model().named_parameters());
  add(buffers_, TensorRole::kBuffer, trainer.model().named_buffers());
  if (options.replay) trainer.keep_for_replay(true);
}

Sentinel::~Sentinel() {
  if (options_.replay) trainer_.keep_for_replay(false);
}

void Sentinel::note(Watched& watched) {
  if (watched.noted) return;
  watched.noted = true;
  verdict_.note(watched.kind, watched.path);
}

void Sentinel::on_step_begin(std::uint32_t step) noexcept {
  begun_ = trainer_.stepping() && !engine::replaying();
  if (!begun_) return;
  try {
    begin_step(step);
  } catch (...) {
    begun_ = false;  // no memory: the step goes unwatched
  }
}

void Sentinel::begin_step(std::uint32_t step) {
  const ScopedDefaultFpEnvironment environment;
  step_ = step;
  micro_batch_ = 0;
  loaded_.clear();
  losses_.clear();
  for (Reading& reading : gradients_) reading.known = false;
  next_gradient_ = 0;
  copied_ = changes_reported_ = judged_ = false;
  verdict_ = {};
  norms_.begin_step(step);
  if (!start_read_) read_start();
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) watched.noted = watched.changed = false;
  }
  look_for_changes(buffers_);
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) {
      if (list == &parameters_ || (list == &state_ && close_)) read_if_written(watched);
      if (watched.is_bad()) note(watched);
    }
  }
  if (sampler_.takes(step)) sampler_.begin(step);
}

// What training starts from.
void Sentinel::read_start() {
  start_read_ = true;
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) {
      watched.last = read_contents(watched.tensor);
      watched.read_in = step_;
      watched.is_mask = watched.kind == TensorRole::kBuffer && !watched.last.finite && !watched.last.nan;
    }
  }
  audit_.start();
}

// By an op, or by the program between two steps: no secret.
bool Sentinel::read_if_written(Watched& watched) {
  if (watched.last.known && watched.tensor.version() == watched.last.version) return false;
  watched.last = read_contents(watched.tensor);
  watched.read_in = step_;
  if (watched.is_bad()) note(watched);
  return true;
}

// Contents that are not as they were read, though their version says that nothing wrote them.
void Sentinel::look_for_changes(std::vector<Watched>& list) {
  for (Watched& watched : list) {
    watched.changed = false;
    if (read_if_written(watched) || checksum_of(watched.tensor) == watched.last.checksum) continue;
    watched.changed = true;
    watched.last = read_contents(watched.tensor);
    if (watched.is_bad()) {
      note(watched);
    } else {
      ++verdict_.bad_tensors;
    }
    verdict_.note_changed(watched.path);
  }
}

// By now the gradients of the step before are cleared, unless a run keeps them. Bad ones that are added to stay bad: no
// scale calibrates that away.
void Sentinel::look_for_kept_gradients() {
  for (std::size_t i = 0; i < gradients_.size() && !verdict_.kept; ++i) {
    const engine::Tensor& gradient = parameters_[i].tensor.grad();
    verdict_.kept = gradient.defined() && !is_finite(gradient);
  }
}

void Sentinel::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept {
  if (!is_watching()) return;
  micro_batch_ = micro_batch;
  recorder_.on_batch({step_, micro_batch, sample_ids});
}

void Sentinel::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  if (!is_watching() || !tensor.defined()) return;
  try {
    const ScopedDefaultFpEnvironment environment;
    if (kind == TensorRole::kBatch || kind == TensorRole::kLabel) {
      loaded_.push_back({kind, std::string(path), tensor, read_contents(tensor)});
      // An infinity may be a mask: it is judged by what it makes of the step.
      if (loaded_.back().reading.nan) verdict_.note(kind, path);
    } else if (kind == TensorRole::kLoss) {
      sampler_.on_loss();
      const bool several = trainer_.options().micro_batches > 1;
      if (micro_batch_ == 0) look_for_kept_gradients();
      losses_.push_back({kind, several ? "the loss of micro-batch " + std::to_string(micro_batch_) : "the loss",
                         is_finite(tensor), checksum_of(tensor)});
      if (!losses_.back().finite) verdict_.note(kind, path);
    } else if (kind == TensorRole::kBoundaryGradient) {
      while (next_gradient_ < gradients_.size() && parameters_[next_gradient_].path != path) ++next_gradient_;
      if (next_gradient_ == gradients_.size()) return;
      const Reading reading = read_norm(tensor);
      gradients_[next_gradient_] = reading;
      norms_.add(kind, static_cast<std::uint32_t>(next_gradient_), reading.norm, reading.amax);
      if (!reading.finite) verdict_.note(kind, path);
    }
  } catch (...) {
    begun_ = false;  // no memory: the rest of the step goes unwatched
  }
}

void Sentinel::on_scaler(const ScalerEvent& event) noexcept {
  if (!is_watching()) return;
  ScalerEvent placed = event;
  placed.step = step_;
  placed.micro_batch = micro_batch_;
  recorder_.on_scaler(placed);
}

void Sentinel::on_optimizer_begin() noexcept {
  if (!is_watching()) return;
  try {
    at_boundary();
  } catch (...) {
    begun_ = false;
  }
}

void Sentinel::at_boundary() {
  {
    const ScopedDefaultFpEnvironment environment;
    if (close_ || verdict_.bad != 0) look_for_changes(parameters_);
    if (close_) look_for_changes(state_);
    for (Watched& watched : buffers_) read_if_written(watched);
    audit();
  }
  if (verdict_.harm(holds_back(trainer_)) != hunt::Harm::kNone) return trigger(/*after_optimizer=*/false);
  if (!close_ || !options_.replay) return;
  copy_.take(trainer_.optimizer());
  copied_ = true;
}

// What the optimizer is about to do, unless gradients are bad: then the harm is done already.
void Sentinel::audit() {
  if ((verdict_.bad & role_bit(TensorRole::kBoundaryGradient)) != 0) return;
  audit_.foresee(
      step_,
      [this](std::size_t i) {
        if (i >= gradients_.size()) return OptimizerAudit::Gradient{};  // a parameter that is listed twice is read once
        return OptimizerAudit::Gradient{gradients_[i].known, gradients_[i].amax, parameters_[i].changed};
      },
      /*may_read=*/true,
      [this](std::size_t i) { verdict_.note_audited(parameters_[i].path); });
}

// A parameter went bad although the audit had proved that it cannot: what its state now holds beyond what was proved
// came there unseen.
void Sentinel::look_for_the_impossible() {
  constexpr double kRounding = 1.001;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const OptimizerAudit::Audited& audited = audit_.audited()[i];
    if (parameters_[i].last.finite || audited.proved_in != step_) continue;
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
      verdict_.bad |= kHealthChanged;
      ++verdict_.bad_tensors;
    };
    look(audited.master, audited.memory.param, true);
    look(audited.first, audited.memory.first, true);
    look(audited.second, std::numeric_limits<double>::infinity(), false);
  }
}

void Sentinel::after_step(bool skipped) {
  {
    const ScopedDefaultFpEnvironment environment;
    bool bad = false;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Watched& watched = parameters_[i];
      if (watched.tensor.version() != watched.last.version || !watched.last.has_norm) {
        watched.last = read_all(watched.tensor);
      }
      watched.read_in = step_;
      norms_.add(TensorRole::kParameter, static_cast<std::uint32_t>(i), watched.last.norm, watched.last.amax);
      if (!watched.last.finite) note(watched);
      bad = bad || !watched.last.finite;
    }
    if (bad && !close_ && !skipped) look_for_the_impossible();
    for (Watched& watched : state_) {
      if (!close_ && !bad) break;
      if (watched.tensor.version() != watched.last.version) watched.last = read_contents(watched.tensor);
      watched.read_in = step_;
      if (!watched.last.finite) note(watched);
    }
    audit_.settle();
  }
  if (!skipped && verdict_.harm(holds_back(trainer_)) != hunt::Harm::kNone) trigger(/*after_optimizer=*/true);
}

void Sentinel::on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept {
  if (is_watching()) {
    try {
      after_step(skipped);
    } catch (...) {
      begun_ = false;
    }
  }
  if (begun_ && step == step_) {
    hunt::NormSum gradients, weights;
    for (const Reading& reading : gradients_) {
      if (reading.known) gradients.add(reading.norm);
    }
    for (const Watched& watched : parameters_) weights.add(watched.last.norm);
    recorder_.on_health(verdict_.health(step, gradients.norm(), weights.norm()));
  }
  if (trainer_.stepping() && !engine::replaying()) recorder_.on_step_end({step, skipped, loss, lr, scale});
  sampler_.end();
  begun_ = false;
}

}  // namespace nanhunt::hooks
