// SPDX-License-Identifier: Apache-2.0
// What is asked for when, and how it is reported; sentinel_trigger.cpp has what follows when a step is bad.
#include "hooks/engine/sentinel/sentinel.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hooks/engine/replay/replay_record.h"
#include "hooks/engine/replay/step_replay.h"
#include "src/engine/backend.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::hooks {
namespace {

using record::ScopedDefaultFpEnvironment;
using hunt::StepState;
using Way = BoundaryPlan::Way;

constexpr std::size_t kMostSteps = 8;  // under way at once; the oldest then counts as lost
constexpr std::string_view kLostNote =
    "steps of which a device did not deliver all statistics in time: not known to be healthy";
constexpr std::string_view kWaitsNote = "waits for the device that the watch has added";
constexpr std::string_view kUnseenNote =
    "on a device: contents that change unseen are looked for only in a bad step, by their statistics";
constexpr std::string_view kHindsightNote =
    "on a device, boundary scaler or deferred: bad updates are not foreseen before the optimizer runs, but reported in "
    "hindsight where they left something bad";
constexpr std::string_view kUnreadNote =
    "on a device: updates that options and gradients do not prove to be finite, of parameters too large to be read "
    "before the optimizer runs: not foreseen";

}  // namespace

Sentinel::Sentinel(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options)
    : trainer_(trainer),
      recorder_(recorder),
      options_(options),
      judge_({options.max_triggers, options.trigger_distance}),
      norms_(options.ring_steps),
      audit_(trainer.optimizer()) {
  const engine::Optimizer& optimizer = trainer.optimizer();
  std::uint64_t bytes = 0;
  const auto add_all = [&](std::vector<Watched>& list, TensorRole kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) {
      const bool known = std::any_of(list.begin(), list.end(),
                                     [&](const Watched& watched) { return watched.tensor.impl() == tensor.impl(); });
      if (known) continue;
      list.push_back({.kind = kind, .path = path, .tensor = tensor});
      bytes += tensor.storage()->bytes();
    }
  };
  add_all(parameters_, TensorRole::kParameter, optimizer.parameters());
  optimized_ = parameters_.size();
  add_all(state_, TensorRole::kState, optimizer.named_state());
  const std::uint64_t copy_bytes = bytes;
  close_ = copy_bytes <= options.close_bytes;
  add_all(parameters_, TensorRole::kParameter, trainer.model().named_parameters());
  add_all(buffers_, TensorRole::kBuffer, trainer.model().named_buffers());

  const bool on_device = !parameters_.empty() && !parameters_[0].tensor.device().is_cpu();
  plan_ = choose_boundary({.wanted = options.boundary,
                           .on_device = on_device,
                           .scaler_reads = holds_back(trainer),
                           .replays = options.replay,
                           .copy_bytes = copy_bytes,
                           .copy_budget = options.shadow_bytes,
                           .close_bytes = options.close_bytes});
  if (on_device) open_device();
  if (options.replay) trainer.keep_for_replay(true);
}

void Sentinel::open_device() {
  const engine::Device device = parameters_[0].tensor.device();
  std::string why_not;
  for (const auto* list : {&parameters_, &state_, &buffers_}) {
    for (const Watched& watched : *list) {
      if (watched.tensor.device().is_cpu() || watched.tensor.device() == device || !why_not.empty()) continue;
      why_not = "the model is on several devices: " + watched.path + " is on another one than " + parameters_[0].path;
    }
  }
  if (why_not.empty()) {
    // A step asks for gradients, parameters and a little more; several may be under way, and a replay asks for each mark.
    const std::size_t tensors = 1024 + 8 * (parameters_.size() + state_.size() + buffers_.size());
    device_ = kernels::DeviceReadings::open(engine::backend_of(device), {.tensors = tensors, .tickets = tensors}, why_not);
  }
  if (device_) return;
  recorder_.on_note({0, "boundary sync, each tensor copied to the host: this device gives no readings: " + why_not, 1});
  plan_ = {.way = Way::kSync, .copies = options_.replay && close_};
}

Sentinel::~Sentinel() {
  finish();
  if (options_.replay) trainer_.keep_for_replay(false);
}

std::vector<Sentinel::Watched>& Sentinel::list_of(Part part) {
  return part == Part::kParameter ? parameters_ : part == Part::kState ? state_ : buffers_;
}

Sentinel::Step* Sentinel::at_hand() {
  const bool watching = judge_.is_open() && !steps_.empty() && trainer_.stepping() && !engine::replaying();
  return watching ? &steps_.back() : nullptr;
}

Wanted Sentinel::wanted_of(Part part) {
  switch (part) {
    case Part::kKept: return Wanted::kFinite;
    case Part::kGradient: return Wanted::kNorm;
    case Part::kParameter: return Wanted::kAll;
    default: return Wanted::kContents;
  }
}

void Sentinel::add(Group& group, Part part, std::size_t index, const engine::Tensor& tensor) {
  group.read.add(tensor, wanted_of(part));
  group.parts.emplace_back(part, index);
}

void Sentinel::add_written(Group& group, Part part) {
  std::vector<Watched>& list = list_of(part);
  for (std::size_t i = 0; i < list.size(); ++i) {
    Watched& watched = list[i];
    if (watched.asked_version == watched.tensor.version()) continue;
    watched.asked_before = std::exchange(watched.asked_version, watched.tensor.version());
    add(group, part, i, watched.tensor);
  }
}

void Sentinel::add_loaded(Group& group, Step& step) {
  for (; step.loaded_asked < step.loaded.size(); ++step.loaded_asked) {
    const Loaded& loaded = step.loaded[step.loaded_asked];
    if (loaded.tensor.version() == loaded.version) add(group, Part::kLoaded, step.loaded_asked, loaded.tensor);
  }
}

void Sentinel::ask(Step& step, Group&& group) {
  if (group.read.empty()) return;
  const ScopedDefaultFpEnvironment environment;
  step.groups.push_back(std::move(group));
  step.groups.back().read.ask(device_.get());
}

void Sentinel::on_step_begin(std::uint32_t step) noexcept {
  if (!trainer_.stepping() || engine::replaying()) return judge_.restart();
  try {
    begin_step(step);
  } catch (...) {
    judge_.restart();  // no memory: the step goes unwatched
  }
}

void Sentinel::begin_step(std::uint32_t number) {
  judge_.restart();  // also after one that threw
  report_steps(/*wait=*/false);
  Step& step = steps_.emplace_back();
  step.number = number;
  judge_.pass(StepState::kForward);
  step.gradients.resize(optimized_);
  next_gradient_ = 0;
  boundary_ = {};
  if (!answers_at_once() && !std::exchange(boundary_reported_, true)) {
    recorder_.on_note({number, plan_.text, 1});
    recorder_.on_note({number, kUnseenNote, 1});
    if (plan_.way != Way::kSync) recorder_.on_note({number, kHindsightNote, 1});
  }
  if (!std::exchange(start_read_, true)) {
    audit_.start();
    Group start;
    start.starts_run = true;
    for (const Part part : {Part::kParameter, Part::kState, Part::kBuffer}) add_written(start, part);
    ask(step, std::move(start));
  }
  if (answers_at_once()) absorb(step, /*wait=*/false);
}

void Sentinel::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  step->micro_batch = micro_batch;
  if (step == &steps_.front()) return recorder_.on_batch({step->number, micro_batch, sample_ids});
  try {
    step->held.push_back({{}, {}, micro_batch, {sample_ids.begin(), sample_ids.end()}});
  } catch (...) {
    judge_.restart();
  }
}

void Sentinel::on_scaler(const ScalerEvent& event) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  ScalerEvent placed = event;
  placed.step = step->number;
  placed.micro_batch = step->micro_batch;
  if (step == &steps_.front()) return recorder_.on_scaler(placed);
  try {
    step->held.push_back({placed, std::string(event.text), step->micro_batch, {}});
  } catch (...) {
    judge_.restart();
  }
}

void Sentinel::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  Step* step = at_hand();
  if (step == nullptr || !tensor.defined()) return;
  try {
    if (kind == TensorRole::kBatch || kind == TensorRole::kLabel) {
      if (step->micro_batch >= trainer_.options().micro_batches) return;  // of a validation: judged by what comes of it
      step->loaded.push_back({.kind = kind, .path = std::string(path), .tensor = tensor, .version = tensor.version()});
      if (!answers_at_once()) return;  // one launch with the loss
      Group group;
      add_loaded(group, *step);
      ask(*step, std::move(group));
    } else if (kind == TensorRole::kLoss) {
      judge_.pass(StepState::kLoss);
      Group group;
      add_loaded(group, *step);
      // By now the gradients of the step before are cleared, unless a run keeps them. Bad ones that are added to stay
      // bad: no scale calibrates that away.
      for (std::size_t i = 0; i < optimized_ && step->micro_batch == 0; ++i) {
        const engine::Tensor gradient = trainer_.optimizer().gradient(i);
        if (gradient.defined()) add(group, Part::kKept, i, gradient);
      }
      const bool several = trainer_.options().micro_batches > 1;
      step->losses.push_back({.path = std::string(path),
                              .name = several ? "the loss of micro-batch " + std::to_string(step->micro_batch) : "the loss"});
      add(group, Part::kLoss, step->losses.size() - 1, tensor);
      ask(*step, std::move(group));
      if (plan_.way == Way::kScaler) device_->hand_over();  // the scaler's read brings it to the optimizer boundary
    } else if (kind == TensorRole::kOutput) {
      Group group;
      step->validated.push_back({.path = std::string(path), .name = validated_name(path, step->micro_batch)});
      step->validated.back().is_one = tensor.numel() == 1;
      add(group, Part::kValidated, step->validated.size() - 1, tensor);
      ask(*step, std::move(group));
      if (device_) device_->hand_over();  // the trainer's read of the validation's loss brings it
    } else if (kind == TensorRole::kBoundaryGradient) {
      while (next_gradient_ < optimized_ && parameters_[next_gradient_].path != path) ++next_gradient_;
      if (next_gradient_ == optimized_) return;
      step->gradients[next_gradient_].is_stepped = true;
      add(boundary_, Part::kGradient, next_gradient_, tensor);
    }
  } catch (...) {
    judge_.restart();  // no memory: the rest of the step goes unwatched
  }
}

void Sentinel::on_optimizer_begin() noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  judge_.pass(StepState::kBackward);
  try {
    at_boundary(*step);
  } catch (...) {
    judge_.restart();
  }
}

void Sentinel::at_boundary(Step& step) {
  Group group = std::exchange(boundary_, {});
  if (answers_at_once()) {
    ask(step, std::exchange(group, {}));
    absorb(step, /*wait=*/false);
    if (close_ || verdict(step).bad != 0) add_written(group, Part::kParameter);
    if (close_) add_written(group, Part::kState);
    ask(step, std::exchange(group, {}));
    absorb(step, /*wait=*/false);
    if (close_ || verdict(step).bad != 0) look_for_changes(step, {Part::kParameter}, /*in_batch=*/false);
    if (close_) look_for_changes(step, {Part::kState}, /*in_batch=*/false);
  }
  add_written(group, Part::kBuffer);
  ask(step, std::move(group));
  const bool known = answers_at_once() || plan_.way == Way::kSync;
  if (known && !step.groups.empty()) step.groups.back().read.wait();
  report_steps(/*wait=*/false);
  const bool first = &step == &steps_.front();
  if (known && first) {
    try {
      audit(step);
    } catch (...) {  // no memory for its copies, say: the step goes on without it
    }
  }
  const bool ran_again = first && harm(step) != hunt::Harm::kNone && trigger(step, Moment::kBoundary);
  if (plan_.copies && !ran_again) copy_at_boundary(step.number);
}

void Sentinel::copy_at_boundary(std::uint32_t step) {
  try {
    copy_.take(trainer_.optimizer());
    copied_in_ = step;
  } catch (...) {
    copy_ = {};
    copied_in_.reset();
    plan_.copies = false;
    if (plan_.way == Way::kDeferred) plan_.way = Way::kSync;
    recorder_.on_note({step,
                       answers_at_once() ? "no memory for the copy of parameters and state: a step whose optimizer left "
                                           "them bad is not replayed"
                                         : "no memory for the copy of parameters and state: boundary sync from here on, "
                                           "and a step whose optimizer left them bad is not replayed",
                       1});
  }
}

// What the optimizer is about to do, unless gradients are bad: then the harm is done already.
void Sentinel::audit(Step& step) {
  if ((verdict(step).bad & role_bit(TensorRole::kBoundaryGradient)) != 0) return;
  step.audited = true;
  const ScopedDefaultFpEnvironment environment;
  const std::size_t unread = audit_.foresee(
      step.number,
      [&](std::size_t i) {
        if (i >= optimized_) return OptimizerAudit::Gradient{};  // a parameter that is listed twice is read once
        const Reading& gradient = step.gradients[i].reading;
        return OptimizerAudit::Gradient{gradient.known, gradient.amax, parameters_[i].changed};
      },
      /*may_read=*/answers_at_once() || close_,
      [&](std::size_t i) { verdict(step).note_audited(parameters_[i].path); });
  if (unread != 0 && !std::exchange(unread_reported_, true)) recorder_.on_note({step.number, kUnreadNote, unread});
}

// Before the trainer reads its loss, which brings this along.
void Sentinel::on_optimizer_end(bool) noexcept {
  Step* step = at_hand();
  if (step == nullptr) return;
  judge_.pass(StepState::kOptimizer);
  try {
    Group group;
    add_written(group, Part::kParameter);
    if (close_) add_written(group, Part::kState);
    ask(*step, std::move(group));
    if (device_) device_->hand_over();
  } catch (...) {
    judge_.restart();
  }
}

void Sentinel::on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept {
  end_step({step, skipped, loss, lr, scale});
}

void Sentinel::on_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) noexcept {
  StepEvent event{.step = step, .ending = ending, .message = message};
  event.lr = event.scale = std::numeric_limits<double>::quiet_NaN();
  end_step(event);
}

void Sentinel::end_step(const StepEvent& event) noexcept {
  if (engine::replaying() || !trainer_.stepping()) return;
  if (Step* now = at_hand(); now != nullptr && now->number == event.step) {
    now->skipped = event.skipped || event.ending != StepEnding::kOptimizer;
    now->end = event;
    try {
      now->said = event.message;
    } catch (...) {  // no memory for the words
    }
    now->end->message = now->said;
    // Which gradient is NaN the replay tells: nobody stored it.
    if (trainer_.stopped_by_anomaly()) verdict(*now).note(TensorRole::kBoundaryGradient, "");
    judge_.end(event.ending);
    report_steps(/*wait=*/false);
  } else {  // it went unwatched
    judge_.restart();
    report_steps(/*wait=*/true);
    recorder_.on_step_end(event);
  }
  audit_.settle();
}

void Sentinel::finish() noexcept {
  const std::uint64_t waits = counts().waits;  // those that the end needs are no step's
  judge_.restart();
  const std::uint32_t last = steps_.empty() ? trainer_.next_step() : steps_.back().number;
  report_steps(/*wait=*/true);
  if (waits > waits_reported_) recorder_.on_note({last, kWaitsNote, waits});
  waits_reported_ = counts().waits;
}

void Sentinel::report_steps(bool wait) noexcept {
  while (!steps_.empty()) {
    try {
      const bool all = absorb(steps_.front(), wait);
      if (!is_over(steps_.front())) return;
      if (!all && !wait && steps_.size() <= kMostSteps) return;
      for (Group& group : steps_.front().groups) {
        if (group.absorbed) continue;
        group.read.give_up();
        steps_.front().lost = true;
      }
      report_step(steps_.front());
    } catch (...) {  // no memory: what is left of the step is not reported
    }
    steps_.pop_front();
    if (!steps_.empty()) report_deferred(steps_.front());
  }
}

void Sentinel::report_deferred(Step& step) {
  for (const DeferredEvent& held : step.held) {
    if (held.scaler) {
      ScalerEvent event = *held.scaler;
      event.text = held.text;
      recorder_.on_scaler(event);
    } else {
      recorder_.on_batch({step.number, held.micro_batch, held.sample_ids});
    }
  }
  step.held.clear();
}

void Sentinel::open_step(Step& step) {
  step.opened = true;
  norms_.begin_step(step.number);
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) watched.noted = watched.changed = false;
  }
  if (answers_at_once()) {
    // What the program wrote between two steps is no secret.
    Group written;
    add_written(written, Part::kBuffer);
    add_written(written, Part::kParameter);
    if (close_) add_written(written, Part::kState);
    ask(step, std::move(written));
    absorb(step, /*wait=*/false);
    look_for_changes(step, {Part::kBuffer}, /*in_batch=*/false);
  }
  for (auto* list : {&parameters_, &state_, &buffers_}) {
    for (Watched& watched : *list) {
      if (watched.is_bad()) note(step, watched);
    }
  }
}

bool Sentinel::absorb(Step& step, bool wait) {
  if (!step.opened) open_step(step);
  for (Group& group : step.groups) {
    if (group.absorbed) continue;
    if (!(wait ? group.read.wait() : group.read.poll())) return false;
    group.absorbed = true;
    absorb_group(step, group);
  }
  return true;
}

void Sentinel::absorb_group(Step& step, Group& group) {
  const ScopedDefaultFpEnvironment environment;
  if (group.read.incomplete()) step.lost = true;
  for (std::size_t i = 0; i < group.parts.size(); ++i) {
    const auto [part, index] = group.parts[i];
    const Reading& reading = group.read[i];
    switch (part) {
      case Part::kLoaded:
        step.loaded[index].reading = reading;
        // An infinity may be a mask: it is judged by what it makes of the step.
        if (reading.nan) verdict(step).note(step.loaded[index].kind, step.loaded[index].path);
        break;
      case Part::kLoss:
        step.losses[index].reading = reading;
        if (!reading.finite) verdict(step).note(TensorRole::kLoss, step.losses[index].path);
        break;
      case Part::kValidated: {
        Loss& validated = step.validated[index];
        validated.reading = reading;
        // Of many an infinity may be a mask.
        if (reading.nan || (validated.is_one && !reading.finite)) {
          verdict(step).note(TensorRole::kOutput, validated.path);
        }
        break;
      }
      case Part::kKept:
        verdict(step).kept = verdict(step).kept || !reading.finite;
        break;
      case Part::kGradient:
        step.gradients[index].reading = reading;
        if (reading.known) {
          norms_.add(TensorRole::kBoundaryGradient, static_cast<std::uint32_t>(index), reading.norm, reading.amax);
        }
        if (!reading.finite) verdict(step).note(TensorRole::kBoundaryGradient, parameters_[index].path);
        break;
      case Part::kParameter:
      case Part::kState:
      case Part::kBuffer: {
        Watched& watched = list_of(part)[index];
        watched.before = std::exchange(watched.last, reading);
        watched.before_read_in = std::exchange(watched.read_in, step.number);
        if (group.starts_run) watched.is_mask = part == Part::kBuffer && !reading.finite && !reading.nan;
        if (watched.is_bad()) note(step, watched);
        break;
      }
    }
  }
}

void Sentinel::note(Step& step, Watched& watched) {
  if (watched.noted) return;
  watched.noted = true;
  verdict(step).note(watched.kind, watched.path);
}

// All that will ever be known of it is. A step that was held back triggers as at the optimizer boundary.
void Sentinel::report_step(Step& step) {
  if (answers_at_once() && step.end) {
    const bool bad = std::ranges::any_of(parameters_, [](const Watched& watched) { return !watched.last.finite; });
    if (bad && !close_ && !step.skipped) look_for_the_impossible(step);
    if (bad && !close_) read_state(step);
    for (Watched& watched : parameters_) watched.read_in = step.number;
    for (Watched& watched : state_) watched.read_in = close_ || bad ? step.number : watched.read_in;
  }
  const bool bad = step.end && harm(step) != hunt::Harm::kNone;
  if (bad && step.skipped) trigger(step, Moment::kBoundary);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Reading& last = parameters_[i].last;
    if (last.known) norms_.add(TensorRole::kParameter, static_cast<std::uint32_t>(i), last.norm, last.amax);
  }
  if (bad && !step.skipped) trigger(step, Moment::kAfter);
  if (step.lost) recorder_.on_note({step.number, kLostNote, ++lost_steps_});
  if (!step.end) return;
  const bool unread = step.lost || step.end->ending == StepEnding::kException;
  report_health(step, !unread);
  recorder_.on_step_end(*step.end);
}

void Sentinel::report_health(const Step& step, bool is_read) {
  const ScopedDefaultFpEnvironment environment;
  const auto norm = [](const Reading& reading) {
    return reading.known ? reading.norm : std::numeric_limits<double>::quiet_NaN();
  };
  hunt::NormSum gradients, weights;
  for (const Gradient& gradient : step.gradients) {
    if (gradient.is_stepped) gradients.add(norm(gradient.reading));
  }
  for (const Watched& watched : parameters_) weights.add(norm(watched.last));
  const hunt::StepVerdict verdict = judge_.take(step.number, /*whole=*/true);
  if (!is_read && verdict.bad == 0) return;  // no row at all is better than a healthy one
  recorder_.on_health(verdict.health(step.number, gradients.norm(), weights.norm()));
}

}  // namespace nanhunt::hooks
