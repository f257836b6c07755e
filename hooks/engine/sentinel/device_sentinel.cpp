// SPDX-License-Identifier: Apache-2.0
// What is asked for when, and how it is told; device_sentinel_trigger.cpp has what follows when a step is bad.
#include "hooks/engine/sentinel/device_sentinel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "hooks/engine/replay/step_replay.h"
#include "src/engine/backend.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::hooks {
namespace {

using record::ScopedDefaultFpEnvironment;

constexpr std::size_t kMostSteps = 8;  // under way at once; the oldest then counts as lost
constexpr std::string_view kLostNote =
    "steps of which a device did not deliver all statistics in time: not known to be healthy";
constexpr std::string_view kWaitsNote = "waits for the device that the watch has added";
constexpr std::string_view kUnseenNote =
    "on a device: contents that change unseen are looked for only in a bad step, by their statistics";
constexpr std::string_view kHindsightNote =
    "on a device, boundary scaler or deferred: bad updates are not foreseen before the optimizer runs, but told in hindsight "
    "where they left something bad";
constexpr std::string_view kUnreadNote =
    "on a device: updates that options and gradients do not prove to be finite, of parameters too large to be read "
    "before the optimizer runs: not foreseen";

}  // namespace

DeviceSentinel::DeviceSentinel(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options)
    : trainer_(trainer),
      recorder_(recorder),
      options_(options),
      policy_({options.max_triggers, options.trigger_distance}, options.replay),
      norms_(options.ring_steps),
      audit_(trainer.optimizer()),
      sampler_(recorder, options) {
  const engine::Optimizer& optimizer = trainer.optimizer();
  std::uint64_t bytes = 0;
  const auto add_all = [&](std::vector<Watched>& list, TensorRole kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) {
      const bool known = std::any_of(list.begin(), list.end(),
                                     [&](const Watched& watched) { return watched.tensor.impl() == tensor.impl(); });
      if (!known) list.push_back({.kind = kind, .path = path, .tensor = tensor});
    }
  };
  const auto bytes_of = [](const std::vector<Watched>& list) {
    std::uint64_t sum = 0;
    for (const Watched& watched : list) sum += watched.tensor.storage()->bytes();
    return sum;
  };
  add_all(parameters_, TensorRole::kParameter, optimizer.parameters());
  optimized_ = parameters_.size();
  add_all(state_, TensorRole::kState, optimizer.named_state());
  bytes = bytes_of(parameters_) + bytes_of(state_);
  close_ = bytes <= options.close_bytes;
  add_all(parameters_, TensorRole::kParameter, trainer.model().named_parameters());
  add_all(buffers_, TensorRole::kBuffer, trainer.model().named_buffers());

  plan_ = choose_boundary({.wanted = options.boundary,
                       .on_device = true,
                       .scaler_reads = holds_back(trainer),
                       .replays = options.replay,
                       .copy_bytes = bytes,
                       .copy_budget = options.shadow_bytes,
                       .close_bytes = options.close_bytes});
  const engine::Device device = parameters_.at(0).tensor.device();
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (watched.tensor.device().is_cpu() || watched.tensor.device() == device) continue;
      why_not_ = "the model is on several devices: " + watched.path + " is on another one than " + parameters_[0].path;
      return;
    }
  }
  // A step asks for gradients, parameters and a little more; several may be under way, and a replay asks for each mark.
  const std::size_t tensors = 1024 + 8 * (parameters_.size() + state_.size() + buffers_.size());
  readings_ = kernels::DeviceReadings::open(engine::backend_of(device),
                                            {.tensors = tensors, .tickets = tensors}, why_not_);
  if (readings_ && options.replay) trainer.keep_for_replay(true);
}

DeviceSentinel::~DeviceSentinel() {
  finish();
  if (readings_ && options_.replay) trainer_.keep_for_replay(false);
}

std::vector<DeviceSentinel::Watched>& DeviceSentinel::list_of(Part part) {
  return part == Part::kParameter ? parameters_ : part == Part::kState ? state_ : buffers_;
}

DeviceSentinel::Step* DeviceSentinel::at_hand() {
  const bool watching = begun_ && !steps_.empty() && trainer_.stepping() && !engine::replaying();
  return watching ? &steps_.back() : nullptr;
}

void DeviceSentinel::add(Group& group, Part part, std::size_t index, const engine::Tensor& tensor) {
  group.late.add(tensor);
  group.parts.emplace_back(part, index);
}

// Since they were last read.
void DeviceSentinel::add_written(Group& group, Part part, std::vector<Watched>& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    Watched& watched = list[i];
    if (watched.asked_version == watched.tensor.version()) continue;
    watched.asked_before = std::exchange(watched.asked_version, watched.tensor.version());
    add(group, part, i, watched.tensor);
  }
}

void DeviceSentinel::ask(Step& step, Group&& group) {
  if (group.late.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  step.groups.push_back(std::move(group));
  step.groups.back().late.ask(*readings_);
}

void DeviceSentinel::on_step_begin(std::uint32_t step) noexcept {
  begun_ = trainer_.stepping() && !engine::replaying();
  if (!begun_) return;
  try {
    begin_step(step);
  } catch (...) {
    begun_ = false;  // no memory: the step goes unwatched
  }
}

void DeviceSentinel::begin_step(std::uint32_t number) {
  if (!steps_.empty()) steps_.back().over = true;  // also one that threw
  const bool sampled = sampler_.takes(number);
  report_steps(/*wait=*/sampled);  // its ops come after the end of the step before
  Step& step = steps_.emplace_back();
  step.number = number;
  step.gradients.resize(optimized_);
  step.has_gradient.resize(optimized_);
  next_gradient_ = 0;
  boundary_ = {};
  if (!boundary_reported_) {
    boundary_reported_ = true;
    recorder_.on_note({number, plan_.text, 1});
    recorder_.on_note({number, kUnseenNote, 1});
    if (plan_.way != BoundaryPlan::Way::kSync) recorder_.on_note({number, kHindsightNote, 1});
  }
  if (!start_read_) {
    start_read_ = true;
    audit_.start();
    Group start;
    start.starts_run = true;
    add_written(start, Part::kParameter, parameters_);
    add_written(start, Part::kState, state_);
    add_written(start, Part::kBuffer, buffers_);
    ask(step, std::move(start));
  }
  if (sampled) sampler_.begin(number);
}

void DeviceSentinel::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  step->micro_batch = micro_batch;
  if (step == &steps_.front()) return recorder_.on_batch({step->number, micro_batch, sample_ids});
  try {
    step->held.push_back({{}, {}, micro_batch, {sample_ids.begin(), sample_ids.end()}});
  } catch (...) {
    begun_ = false;
  }
}

void DeviceSentinel::on_scaler(const ScalerEvent& event) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  ScalerEvent placed = event;
  placed.step = step->number;
  placed.micro_batch = step->micro_batch;
  if (step == &steps_.front()) return recorder_.on_scaler(placed);
  try {
    step->held.push_back({placed, std::string(event.text), step->micro_batch, {}});
  } catch (...) {
    begun_ = false;
  }
}

void DeviceSentinel::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  Step* step = at_hand();
  if (step == nullptr || !tensor.defined()) return;
  try {
    if (kind == TensorRole::kBatch || kind == TensorRole::kLabel) {
      step->loaded.push_back({kind, std::string(path), tensor, tensor.version()});
    } else if (kind == TensorRole::kLoss) {
      sampler_.on_loss();
      Group group;
      for (; step->loaded_asked < step->loaded.size(); ++step->loaded_asked) {
        const Loaded& loaded = step->loaded[step->loaded_asked];
        if (loaded.tensor.version() == loaded.version) add(group, Part::kLoaded, step->loaded_asked, loaded.tensor);
      }
      // By now the gradients of the step before are cleared, unless a run keeps them. Bad ones that are added to stay
      // bad: no scale calibrates that away.
      for (std::size_t i = 0; i < optimized_ && step->micro_batch == 0; ++i) {
        const engine::Tensor& gradient = parameters_[i].tensor.grad();
        if (gradient.defined()) add(group, Part::kKept, i, gradient);
      }
      const bool several = trainer_.options().micro_batches > 1;
      step->losses.push_back(several ? "the loss of micro-batch " + std::to_string(step->micro_batch) : "the loss");
      step->loss_stats.emplace_back();
      add(group, Part::kLoss, step->losses.size() - 1, tensor);
      ask(*step, std::move(group));
      if (plan_.way == BoundaryPlan::Way::kScaler) readings_->hand_over();  // the scaler's read brings it to the optimizer boundary
    } else if (kind == TensorRole::kBoundaryGradient) {
      while (next_gradient_ < optimized_ && parameters_[next_gradient_].path != path) ++next_gradient_;
      if (next_gradient_ == optimized_) return;
      step->has_gradient[next_gradient_] = true;
      add(boundary_, Part::kGradient, next_gradient_, tensor);
    }
  } catch (...) {
    begun_ = false;  // no memory: the rest of the step goes unwatched
  }
}

void DeviceSentinel::on_optimizer_begin() noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  try {
    at_boundary(*step);
  } catch (...) {
    begun_ = false;
  }
}

void DeviceSentinel::at_boundary(Step& step) {
  Group group = std::exchange(boundary_, {});
  add_written(group, Part::kBuffer, buffers_);
  ask(step, std::move(group));
  if (plan_.way == BoundaryPlan::Way::kSync && !step.groups.empty()) step.groups.back().late.wait(*readings_);
  report_steps(/*wait=*/false);
  if (plan_.way == BoundaryPlan::Way::kSync && &step == &steps_.front()) {
    try {
      audit(step);
    } catch (...) {  // no memory for its copies, say: the step goes on without it
    }
  }
  bool ran_again = false;
  if (&step == &steps_.front() && harm(step) != hunt::Harm::kNone) ran_again = trigger(step, Moment::kBoundary);
  if (!plan_.copies || ran_again) return;
  try {
    copy_.take(trainer_.optimizer());
    copied_in_ = step.number;
  } catch (...) {
    copy_ = {};
    copied_in_.reset();
    plan_.copies = false;
    if (plan_.way == BoundaryPlan::Way::kDeferred) plan_.way = BoundaryPlan::Way::kSync;
    recorder_.on_note(
        {step.number,
         "no memory for the copy of parameters and state: boundary sync from here on, and a step whose optimizer "
         "left them bad is not replayed",
         1});
  }
}

// What the optimizer is about to do, unless gradients are bad: then the harm is done already.
void DeviceSentinel::audit(Step& step) {
  if ((step.verdict.bad & role_bit(TensorRole::kBoundaryGradient)) != 0) return;
  step.audited = true;
  const ScopedDefaultFpEnvironment environment;
  const std::size_t unread = audit_.foresee(
      step.number,
      [&](std::size_t i) {
        const bool known = i < optimized_ && step.gradients[i].has_value();
        return OptimizerAudit::Gradient{known, known ? step.gradients[i]->amax : 0, false};
      },
      /*may_read=*/close_, [&](std::size_t i) { step.verdict.note_audited(parameters_[i].path); });
  if (unread != 0 && !std::exchange(unread_told_, true)) recorder_.on_note({step.number, kUnreadNote, unread});
}

// Before the trainer reads its loss, which brings this along.
void DeviceSentinel::on_optimizer_end(bool) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  try {
    Group group;
    add_written(group, Part::kParameter, parameters_);
    if (close_) add_written(group, Part::kState, state_);
    ask(*step, std::move(group));
    readings_->hand_over();
  } catch (...) {
    begun_ = false;
  }
}

void DeviceSentinel::on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept {
  if (engine::replaying() || !trainer_.stepping()) return;
  if (Step* now = at_hand(); now != nullptr && now->number == step) {
    now->over = true;
    now->skipped = skipped;
    now->end = StepEvent{step, skipped, loss, lr, scale};
    report_steps(/*wait=*/false);
  } else {  // it went unwatched
    if (!steps_.empty()) steps_.back().over = true;
    report_steps(/*wait=*/true);
    recorder_.on_step_end({step, skipped, loss, lr, scale});
  }
  audit_.settle();
  sampler_.end();
  begun_ = false;
}

void DeviceSentinel::finish() noexcept {
  if (!readings_) return;
  const std::uint64_t waits = readings_->counts().waits;  // those that the end needs are no step's
  if (!steps_.empty()) steps_.back().over = true;
  const std::uint32_t last = steps_.empty() ? trainer_.next_step() : steps_.back().number;
  report_steps(/*wait=*/true);
  if (waits > waits_reported_) recorder_.on_note({last, kWaitsNote, waits});
  waits_reported_ = readings_->counts().waits;
}

void DeviceSentinel::report_steps(bool wait) noexcept {
  while (!steps_.empty()) {
    try {
      const bool all = absorb(steps_.front(), wait);
      if (!steps_.front().over) return;
      if (!all && !wait && steps_.size() <= kMostSteps) return;
      for (Group& group : steps_.front().groups) {
        if (group.absorbed) continue;
        group.late.give_up(*readings_);
        steps_.front().lost = true;
      }
      report_step(steps_.front());
    } catch (...) {  // no memory: what is left of the step is not told
    }
    steps_.pop_front();
    if (steps_.empty()) return;
    for (const DeferredEvent& held : steps_.front().held) {
      if (held.scaler) {
        ScalerEvent event = *held.scaler;
        event.text = held.text;
        recorder_.on_scaler(event);
      } else {
        recorder_.on_batch({steps_.front().number, held.micro_batch, held.sample_ids});
      }
    }
    steps_.front().held.clear();
  }
}

void DeviceSentinel::open_step(Step& step) {
  step.opened = true;
  norms_.begin_step(step.number);
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) watched.noted = watched.changed = false;
  }
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) {
      if (watched.is_bad()) note(step, watched);
    }
  }
}

bool DeviceSentinel::absorb(Step& step, bool wait) {
  if (!step.opened) open_step(step);
  for (Group& group : step.groups) {
    if (group.absorbed) continue;
    if (!(wait ? group.late.wait(*readings_) : group.late.poll(*readings_))) return false;
    group.absorbed = true;
    absorb_group(step, group);
  }
  return true;
}

void DeviceSentinel::absorb_group(Step& step, Group& group) {
  const ScopedDefaultFpEnvironment environment;
  if (group.late.incomplete()) step.lost = true;
  for (std::size_t i = 0; i < group.parts.size(); ++i) {
    const auto [part, index] = group.parts[i];
    const std::optional<TensorStats>& stats = group.late[i];
    const bool bad = stats && stats->nonfinite() > 0;
    switch (part) {
      case Part::kLoaded:
        step.loaded[index].stats = stats;
        // An infinity may be a mask: it is judged by what it makes of the step.
        if (bad && stats->nan > 0) step.verdict.note(step.loaded[index].kind, step.loaded[index].path);
        break;
      case Part::kLoss:
        step.loss_stats[index] = stats;
        if (bad) step.verdict.note(TensorRole::kLoss, "loss");
        break;
      case Part::kKept:
        step.verdict.kept = step.verdict.kept || bad;
        break;
      case Part::kGradient:
        step.gradients[index] = stats;
        if (stats) norms_.add(TensorRole::kBoundaryGradient, static_cast<std::uint32_t>(index), norm_of(*stats), stats->amax);
        if (bad) step.verdict.note(TensorRole::kBoundaryGradient, parameters_[index].path);
        break;
      case Part::kParameter:
      case Part::kState:
      case Part::kBuffer: {
        Watched& watched = list_of(part)[index];
        watched.before = std::exchange(watched.last, stats);
        watched.before_read_in = std::exchange(watched.read_in, step.number);
        if (group.starts_run) watched.is_mask = part == Part::kBuffer && bad && stats->nan == 0;
        if (watched.is_bad()) note(step, watched);
        break;
      }
    }
  }
}

void DeviceSentinel::note(Step& step, Watched& watched) {
  if (watched.noted) return;
  watched.noted = true;
  step.verdict.note(watched.kind, watched.path);
}

// All that will ever be known of it is. A step that was held back triggers as at the optimizer boundary.
void DeviceSentinel::report_step(Step& step) {
  const bool bad = step.end && harm(step) != hunt::Harm::kNone;
  if (bad && step.skipped) trigger(step, Moment::kBoundary);
  {
    const ScopedDefaultFpEnvironment environment;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::optional<TensorStats>& last = parameters_[i].last;
      if (last) norms_.add(TensorRole::kParameter, static_cast<std::uint32_t>(i), norm_of(*last), last->amax);
    }
  }
  if (bad && !step.skipped) trigger(step, Moment::kAfter);
  if (step.lost) recorder_.on_note({step.number, kLostNote, ++lost_steps_});
  if (!step.end) return;
  if (!step.lost || step.verdict.bad != 0) report_health(step);  // no row at all is better than a healthy one
  recorder_.on_step_end(*step.end);
}

void DeviceSentinel::report_health(const Step& step) {
  const ScopedDefaultFpEnvironment environment;
  const auto norm = [](const std::optional<TensorStats>& stats) {
    return stats ? norm_of(*stats) : std::numeric_limits<double>::quiet_NaN();
  };
  hunt::NormSum gradients, weights;
  for (std::size_t i = 0; i < optimized_; ++i) {
    if (step.has_gradient[i]) gradients.add(norm(step.gradients[i]));
  }
  for (const Watched& watched : parameters_) weights.add(norm(watched.last));
  recorder_.on_health(step.verdict.health(step.number, gradients.norm(), weights.norm()));
}

}  // namespace nanhunt::hooks
