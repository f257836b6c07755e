// SPDX-License-Identifier: Apache-2.0
#include "src/record/device/deferred_recorder.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "src/record/device/kept_contents.h"

namespace nanhunt::record {

class DeferredRecorder::DeferredEvent {
 public:
  virtual ~DeferredEvent() = default;
  virtual void report(NumberingRecorder& next) = 0;
  virtual void know_evidence(const DeferredEvidence& /*findings*/) {}

  void add(const ValueView& view) {
    bytes += views.emplace_back(view).bytes();
    if (is_deferred(view)) wait_for(view.late);
  }
  void wait_for(std::uint64_t number) {
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
  }
  bool is_ready() const { return numbers.empty(); }

  std::deque<KeptView> views;
  std::vector<std::uint64_t> numbers;  // that have not come
  std::size_t bytes = sizeof(DeferredEvent);
  std::uint64_t since = 0;  // ends of steps
  bool is_op = false;
};

class DeferredRecorder::DeferredOp final : public DeferredEvent {
 public:
  DeferredOp(const OpEvent& from, const OpNumbers* ids) : event_(from) {
    is_op = true;
    std::size_t length = from.module.size() + from.op.size() + from.call_site.size();
    for (const OpInput& in : from.inputs) length += in.slot.size();
    for (const OpOutput& out : from.outputs) length += out.slot.size();
    for (const OpScalar& scalar : from.scalars) length += scalar.name.size();
    text_.reserve(length);
    event_.module = kept(from.module);
    event_.op = kept(from.op);
    event_.call_site = kept(from.call_site);
    inputs_.assign(from.inputs.begin(), from.inputs.end());
    for (OpInput& in : inputs_) {
      in.slot = kept(in.slot);
      add(in.value);
    }
    outputs_.assign(from.outputs.begin(), from.outputs.end());
    for (OpOutput& out : outputs_) {
      out.slot = kept(out.slot);
      add(out.value);
    }
    scalars_.assign(from.scalars.begin(), from.scalars.end());
    for (OpScalar& scalar : scalars_) scalar.name = kept(scalar.name);
    event_.inputs = inputs_;
    event_.outputs = outputs_;
    event_.scalars = scalars_;
    if (ids != nullptr) keep_numbers(*ids);
    if (from.findings != nullptr) know_evidence(*from.findings);
    if (from.late != 0 && from.findings == nullptr) wait_for(from.late);
    bytes += sizeof(DeferredOp) + length + inputs_.size() * sizeof(OpInput) + outputs_.size() * sizeof(OpOutput) +
             scalars_.size() * sizeof(OpScalar);
  }

  void know_evidence(const DeferredEvidence& findings) override {
    findings_ = std::make_unique<KeptEvidence>(findings);
    event_.findings = &findings_->findings;
    bytes += findings_->bytes();
  }
  void report(NumberingRecorder& next) override {
    auto view = views.begin();
    for (OpInput& in : inputs_) in.value = (view++)->view;
    for (OpOutput& out : outputs_) out.value = (view++)->view;
    if (numbers_) {
      next.on_op(event_, *numbers_);
    } else {
      next.on_op(event_);
    }
  }

 private:
  std::string_view kept(std::string_view from) {
    const std::size_t at = text_.size();
    text_ += from;  // never moves: there is room for all
    return std::string_view(text_).substr(at);
  }

  void keep_numbers(const OpNumbers& from) {
    numbers_ = from;
    const auto keep = [this]<class Id>(std::vector<Id>& kept, std::span<const Id>& ids) {
      kept.assign(ids.begin(), ids.end());
      ids = kept;
      bytes += kept.size() * sizeof(Id);
    };
    keep(slots_[0], numbers_->input_slots);
    keep(slots_[1], numbers_->output_slots);
    keep(slots_[2], numbers_->scalar_names);
    keep(layouts_[0], numbers_->input_layouts);
    keep(layouts_[1], numbers_->output_layouts);
  }

  OpEvent event_;
  std::optional<OpNumbers> numbers_;
  std::vector<StringId> slots_[3];
  std::vector<LayoutId> layouts_[2];
  std::string text_;
  std::vector<OpInput> inputs_;
  std::vector<OpOutput> outputs_;
  std::vector<OpScalar> scalars_;
  std::unique_ptr<KeptEvidence> findings_;
};

// The end of a hold of which nobody has said yet what becomes of it.
class DeferredRecorder::DeferredHold final : public DeferredEvent {
 public:
  explicit DeferredHold(DeferredRecorder& of) : of_(of) { wait_for(kNobody); }
  void decide(HoldAction action) {
    action_ = action;
    numbers.clear();
  }
  void report(NumberingRecorder& next) override {
    if (const auto at = std::ranges::find(of_.undecided_, this); at != of_.undecided_.end()) *at = nullptr;
    next.on_hold(action_);
  }

 private:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};  // no contents have this number
  DeferredRecorder& of_;
  HoldAction action_ = HoldAction::kKeep;
};

template <class Report>
class DeferredRecorder::DeferredReport final : public DeferredEvent {
 public:
  explicit DeferredReport(Report report) : report_(std::move(report)) {}
  void report(NumberingRecorder& next) override { report_(next, views); }

 private:
  Report report_;
};

DeferredRecorder::DeferredRecorder(std::unique_ptr<NumberingRecorder> next, const DeferredOptions& options)
    : next_(std::move(next)), options_(options) {}

DeferredRecorder::~DeferredRecorder() {
  if (!in_forked_child()) give_up_all();
}

std::uint64_t DeferredRecorder::next_seq() const noexcept {
  if (in_forked_child()) return next_->next_seq();
  const std::lock_guard lock(mutex_);
  return next_->next_seq() + ops_;
}

RecorderCounters DeferredRecorder::counters() const {
  RecorderCounters counters = next_->counters();
  if (in_forked_child()) return counters;
  const std::lock_guard lock(mutex_);
  counters.dropped_ops += lost_.dropped_ops;
  counters.dropped_other += lost_.dropped_other;
  return counters;
}

Status DeferredRecorder::close() {
  if (!in_forked_child()) {
    const std::lock_guard lock(mutex_);
    give_up_all();
  }
  return next_->close();
}

template <class Pass, class Hold>
void DeferredRecorder::in_order(bool late, Pass pass, Hold hold, std::uint64_t RecorderCounters::*lost) noexcept {
  if (in_forked_child()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!late && (held_.empty() || (adds_to_hold_ && is_due()))) return pass();
    try {
      hold();
    } catch (...) {  // no memory to hold it
      ++(lost_.*lost);
    }
  } catch (...) {  // the mutex itself failed
  }
}

template <class Report>
void DeferredRecorder::hold(std::size_t bytes, Report report, std::span<const ValueView> views) {
  auto event = std::make_unique<DeferredReport<Report>>(std::move(report));
  event->bytes += bytes + sizeof(Report);
  for (const ValueView& view : views) event->add(view);
  keep(std::move(event));
}

void DeferredRecorder::keep(std::unique_ptr<DeferredEvent> event) {
  DeferredEvent& kept = *event;
  kept.since = steps_;
  held_.push_back(std::move(event));
  try {
    for (const std::uint64_t number : kept.numbers) waiting_.emplace(number, &kept);
  } catch (...) {
    forget(kept);
    held_.pop_back();
    throw;
  }
  bytes_ += kept.bytes;
  if (kept.is_op) ++ops_;
  keep_bound();
}

void DeferredRecorder::keep_bound() noexcept {
  while (bytes_ > options_.bytes && !held_.empty()) {
    give_up(*held_.front());
    report_ready();
  }
}

void DeferredRecorder::report_ready() noexcept {
  while (!held_.empty() && held_.front()->is_ready()) {
    DeferredEvent& event = *held_.front();
    bytes_ -= event.bytes;
    if (event.is_op) --ops_;
    try {
      event.report(*next_);
    } catch (...) {  // no memory
      ++(event.is_op ? lost_.dropped_ops : lost_.dropped_other);
    }
    held_.pop_front();
  }
}

void DeferredRecorder::forget(const DeferredEvent& event) noexcept {
  for (const std::uint64_t number : event.numbers) {
    auto [at, end] = waiting_.equal_range(number);
    while (at != end) at = at->second == &event ? waiting_.erase(at) : std::next(at);
  }
}

void DeferredRecorder::give_up(DeferredEvent& event) noexcept {
  forget(event);
  event.numbers.clear();
}

void DeferredRecorder::give_up_all() noexcept {
  for (const auto& event : held_) give_up(*event);
  report_ready();
}

template <class Come>
void DeferredRecorder::come(std::uint64_t number, Come come) noexcept {
  if (in_forked_child()) return;
  try {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = waiting_.equal_range(number);
    if (first == last) return;
    for (auto at = first; at != last; at = waiting_.erase(at)) {
      DeferredEvent& event = *at->second;
      std::erase(event.numbers, number);
      const std::size_t before = event.bytes;
      try {
        come(event);
      } catch (...) {  // no memory: not known
      }
      bytes_ += event.bytes - before;
    }
    report_ready();
    keep_bound();
  } catch (...) {  // the mutex itself failed
  }
}

void DeferredRecorder::on_deferred_contents(std::uint64_t number, const KnownContents& contents) noexcept {
  come(number, [&](DeferredEvent& event) {
    for (KeptView& view : event.views) {
      if (is_deferred(view.view) && view.view.late == number) view.know(contents);
    }
  });
}

void DeferredRecorder::on_deferred_evidence(std::uint64_t number, const DeferredEvidence& findings) noexcept {
  come(number, [&](DeferredEvent& event) { event.know_evidence(findings); });
}

void DeferredRecorder::on_deferred_lost(std::uint64_t number) noexcept {
  come(number, [](DeferredEvent&) {});
}

void DeferredRecorder::on_op(const OpEvent& event) noexcept { add_op(event, nullptr); }
void DeferredRecorder::on_op(const OpEvent& event, const OpNumbers& numbers) noexcept { add_op(event, &numbers); }

void DeferredRecorder::add_op(const OpEvent& event, const OpNumbers* numbers) noexcept {
  const auto waits = [](const auto& argument) { return is_deferred(argument.value) && argument.value.known == nullptr; };
  const bool late = (event.late != 0 && event.findings == nullptr) || std::ranges::any_of(event.inputs, waits) ||
                    std::ranges::any_of(event.outputs, waits);
  const auto pass = [&] { numbers == nullptr ? next_->on_op(event) : next_->on_op(event, *numbers); };
  in_order(late, pass, [&] { keep(std::make_unique<DeferredOp>(event, numbers)); }, &RecorderCounters::dropped_ops);
}

void DeferredRecorder::on_mark(const MarkEvent& event) noexcept {
  in_order(
      is_deferred(event.value), [&] { next_->on_mark(event); },
      [&] {
        hold(event.path.size(),
             [event = event, path = std::string(event.path)](NumberingRecorder& next,
                                                             const std::deque<KeptView>& views) mutable {
               event.path = path;
               event.value = views[0].view;
               next.on_mark(event);
             },
             {&event.value, 1});
      });
}

void DeferredRecorder::on_mark(const MarkEvent& event, StringId path, LayoutId layout) noexcept {
  in_order(is_deferred(event.value), [&] { next_->on_mark(event, path, layout); }, [&] {
    hold(0,
         [event = event, path, layout](NumberingRecorder& next, const std::deque<KeptView>& views) mutable {
           event.path = {};
           event.value = views[0].view;
           next.on_mark(event, path, layout);
         },
         {&event.value, 1});
  });
}

void DeferredRecorder::check_contents(std::uint32_t step, const ValueView& value) noexcept {
  in_order(
      is_deferred(value), [&] { next_->check_contents(step, value); },
      [&] {
        hold(0,
             [step](NumberingRecorder& next, const std::deque<KeptView>& views) {
               next.check_contents(step, views[0].view);
             },
             {&value, 1});
      });
}

void DeferredRecorder::check_contents(std::uint32_t step, const ValueView& value, LayoutId layout) noexcept {
  in_order(is_deferred(value), [&] { next_->check_contents(step, value, layout); }, [&] {
    hold(0,
         [step, layout](NumberingRecorder& next, const std::deque<KeptView>& views) {
           next.check_contents(step, views[0].view, layout);
         },
         {&value, 1});
  });
}

void DeferredRecorder::on_changed(const ChangedEvent& event) noexcept {
  in_order(is_deferred(event.value), [&] { next_->on_changed(event); }, [&] {
    hold(0,
         [event = event](NumberingRecorder& next, const std::deque<KeptView>& views) mutable {
           event.value = views[0].view;
           next.on_changed(event);
         },
         {&event.value, 1});
  });
}

void DeferredRecorder::on_collective(const CollectiveEvent& event) noexcept {
  in_order(std::ranges::any_of(event.shares, is_deferred), [&] { next_->on_collective(event); }, [&] {
    hold(event.group.size() + event.ranks.size_bytes(),
         [event = event, group = std::string(event.group),
          ranks = std::vector<std::uint32_t>(event.ranks.begin(), event.ranks.end())](
             NumberingRecorder& next, const std::deque<KeptView>& views) mutable {
           std::vector<ValueView> shares;
           for (const KeptView& view : views) shares.push_back(view.view);
           event.group = group;
           event.ranks = ranks;
           event.shares = shares;
           next.on_collective(event);
         },
         event.shares);
  });
}

void DeferredRecorder::on_batch(const BatchEvent& event) noexcept {
  in_order(false, [&] { next_->on_batch(event); }, [&] {
    hold(event.sample_ids.size_bytes(),
         [event = event, ids = std::vector<std::int64_t>(event.sample_ids.begin(), event.sample_ids.end())](
             NumberingRecorder& next, const auto&) mutable {
           event.sample_ids = ids;
           next.on_batch(event);
         });
  });
}

// An event of numbers and one text.
template <auto kHandler, auto kText, class Event>
void DeferredRecorder::pass_text(const Event& event) noexcept {
  in_order(
      false, [&] { ((*next_).*kHandler)(event); },
      [&] {
        hold((event.*kText).size(),
             [event = event, text = std::string(event.*kText)](NumberingRecorder& next, const auto&) mutable {
               event.*kText = text;
               (next.*kHandler)(event);
             });
      });
}
void DeferredRecorder::on_scaler(const ScalerEvent& event) noexcept {
  pass_text<&Recorder::on_scaler, &ScalerEvent::text>(event);
}
void DeferredRecorder::on_health(const HealthEvent& event) noexcept {
  pass_text<&Recorder::on_health, &HealthEvent::first_bad>(event);
}
void DeferredRecorder::on_norm(const NormEvent& event) noexcept {
  pass_text<&Recorder::on_norm, &NormEvent::path>(event);
}
void DeferredRecorder::on_unheard(const UnheardEvent& event) noexcept {
  pass_text<&Recorder::on_unheard, &UnheardEvent::text>(event);
}
void DeferredRecorder::on_probe(const ProbeEvent& event) noexcept {
  pass_text<&Recorder::on_probe, &ProbeEvent::text>(event);
}
void DeferredRecorder::on_capture(const CaptureEvent& event) noexcept {
  pass_text<&Recorder::on_capture, &CaptureEvent::file>(event);
}
void DeferredRecorder::on_note(const NoteEvent& event) noexcept {
  pass_text<&Recorder::on_note, &NoteEvent::text>(event);
}
void DeferredRecorder::on_frame(const FrameEvent& event) noexcept {
  in_order(
      false, [&] { next_->on_frame(event); },
      [&] {
        hold(event.site.size() + event.file.size() + event.function.size() + event.code.size(),
             [event = event, site = std::string(event.site), file = std::string(event.file),
              function = std::string(event.function),
              code = std::string(event.code)](NumberingRecorder& next, const auto&) mutable {
               event.site = site;
               event.file = file;
               event.function = function;
               event.code = code;
               next.on_frame(event);
             });
      });
}
void DeferredRecorder::on_setup(const SetupEvent& event) noexcept {
  in_order(
      false, [&] { next_->on_setup(event); },
      [&] {
        hold(event.path.size() + event.site.size() + event.text.size(),
             [event = event, path = std::string(event.path), site = std::string(event.site),
              text = std::string(event.text)](NumberingRecorder& next, const auto&) mutable {
               event.path = path;
               event.site = site;
               event.text = text;
               next.on_setup(event);
             });
      });
}
void DeferredRecorder::on_kernel(const KernelEvent& event) noexcept {
  pass_text<&Recorder::on_kernel, &KernelEvent::name>(event);
}

void DeferredRecorder::on_step_end(const StepEvent& event) noexcept {
  const auto pass = [&] {
    ++steps_;
    next_->on_step_end(event);
  };
  in_order(false, pass, [&] {
    ++steps_;
    while (!held_.empty() && held_.front()->since + options_.steps < steps_) {
      give_up(*held_.front());
      report_ready();
    }
    if (held_.empty()) return next_->on_step_end(event);
    StepEvent placed = event;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (placed.at_ns == 0) placed.at_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    hold(0, [placed](NumberingRecorder& next, const auto&) { next.on_step_end(placed); });
  });
}

void DeferredRecorder::on_storage_released(std::uint64_t storage) noexcept {
  in_order(false, [&] { next_->on_storage_released(storage); },
           [&] { hold(0, [storage](NumberingRecorder& next, const auto&) { next.on_storage_released(storage); }); });
}

bool DeferredRecorder::is_due() const {
  return !undecided_.empty() && !held_.empty() && held_.front().get() == undecided_.front();
}

bool DeferredRecorder::is_hold_due() noexcept {
  if (in_forked_child()) return false;
  const std::lock_guard lock(mutex_);
  return is_due() || (!undecided_.empty() && undecided_.front() == nullptr);
}

void DeferredRecorder::decide_hold(HoldAction action) noexcept {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  if (undecided_.empty()) return;
  DeferredHold* const hold = undecided_.front();
  undecided_.pop_front();
  if (hold == nullptr) return;
  forget(*hold);
  hold->decide(action);
  report_ready();
}

void DeferredRecorder::add_to_due_hold(bool on) noexcept {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  adds_to_hold_ = on;
}

void DeferredRecorder::on_hold(HoldAction action) noexcept {
  if (action == HoldAction::kLater) {
    return in_order(/*late=*/true, [] {}, [&] {
      auto hold = std::make_unique<DeferredHold>(*this);
      undecided_.push_back(hold.get());
      try {
        keep(std::move(hold));
      } catch (...) {  // it goes on into the next one, and is kept with it
        undecided_.back() = nullptr;
        throw;
      }
    });
  }
  in_order(false, [&] { next_->on_hold(action); },
           [&] { hold(0, [action](NumberingRecorder& next, const auto&) { next.on_hold(action); }); });
}

void DeferredRecorder::on_launch(std::uint64_t first, std::uint64_t count) noexcept {
  in_order(false, [&] { next_->on_launch(first, count); }, [&] {
    hold(0, [first, count](NumberingRecorder& next, const auto&) { next.on_launch(first, count); });
  });
}

void DeferredRecorder::on_experiment(const ExperimentRecord& experiment) noexcept {
  in_order(false, [&] { next_->on_experiment(experiment); }, [&] {
    hold(sizeof experiment + experiment.fix.size() + experiment.description.size(),
         [experiment](NumberingRecorder& next, const auto&) { next.on_experiment(experiment); });
  });
}

}  // namespace nanhunt::record
