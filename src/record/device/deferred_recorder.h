// SPDX-License-Identifier: Apache-2.0
// The recorder that all others stand behind: it holds events whose contents are still being read elsewhere, and all
// events after them, until what was read has come; then it hands them on, in their order. The one behind needs to know
// nothing of that: with what is known of contents it judges them as those that it reads itself. Contract:
// src/record/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanhunt/recorder.h"
#include "src/record/recorder.h"

namespace nanhunt::record {

struct DeferredOptions {
  // Past so many bytes of events that are held, or past so many ends of steps, what has not come is given up.
  std::size_t bytes = 64u << 20;
  std::uint32_t steps = 8;
};

class DeferredRecorder final : public NumberingRecorder {
 public:
  explicit DeferredRecorder(std::unique_ptr<NumberingRecorder> next, const DeferredOptions& options = {});
  ~DeferredRecorder() override;  // gives up what has not come
  DeferredRecorder(const DeferredRecorder&) = delete;
  DeferredRecorder& operator=(const DeferredRecorder&) = delete;

  void on_deferred_contents(std::uint64_t number, const KnownContents& contents) noexcept override;
  void on_deferred_evidence(std::uint64_t number, const DeferredEvidence& findings) noexcept override;
  void on_deferred_lost(std::uint64_t number) noexcept override;

  void on_op(const OpEvent& event) noexcept override;
  void on_mark(const MarkEvent& event) noexcept override;
  void on_batch(const BatchEvent& event) noexcept override;
  void on_scaler(const ScalerEvent& event) noexcept override;
  void on_step_end(const StepEvent& event) noexcept override;
  void on_storage_released(std::uint64_t storage) noexcept override;
  void on_health(const HealthEvent& event) noexcept override;
  void on_norm(const NormEvent& event) noexcept override;
  void on_unheard(const UnheardEvent& event) noexcept override;
  void on_changed(const ChangedEvent& event) noexcept override;
  void on_probe(const ProbeEvent& event) noexcept override;
  void on_capture(const CaptureEvent& event) noexcept override;
  void on_frame(const FrameEvent& event) noexcept override;
  void on_setup(const SetupEvent& event) noexcept override;
  void on_note(const NoteEvent& event) noexcept override;
  void on_collective(const CollectiveEvent& event) noexcept override;
  void on_kernel(const KernelEvent& event) noexcept override;
  void check_contents(std::uint32_t step, const ValueView& value) noexcept override;
  void on_experiment(const ExperimentRecord& experiment) noexcept override;

  void on_op(const OpEvent& event, const OpNumbers& numbers) noexcept override;
  void on_mark(const MarkEvent& event, StringId path, LayoutId layout) noexcept override;
  void check_contents(std::uint32_t step, const ValueView& value, LayoutId layout) noexcept override;
  StringId number_text(std::string_view text) noexcept override { return next_->number_text(text); }
  LayoutId number_layout(const TensorView& tensor) noexcept override { return next_->number_layout(tensor); }
  std::size_t texts() const noexcept override { return next_->texts(); }
  std::size_t layouts() const noexcept override { return next_->layouts(); }
  std::string_view text(StringId id) const noexcept override { return next_->text(id); }
  const KnownLayout& layout(LayoutId id) const noexcept override { return next_->layout(id); }
  std::uint64_t next_seq() const noexcept override;
  std::uint64_t bad_since(std::uint64_t seq) const noexcept override { return next_->bad_since(seq); }
  std::uint64_t origins() const noexcept override { return next_->origins(); }
  std::uint64_t origins_that_last() const noexcept override { return next_->origins_that_last(); }
  void on_launch(std::uint64_t first, std::uint64_t count) noexcept override;
  void on_hold(HoldAction action) noexcept override;
  bool is_hold_due() noexcept override;
  void decide_hold(HoldAction action) noexcept override;
  void add_to_due_hold(bool on) noexcept override;
  bool in_forked_child() const noexcept override { return next_->in_forked_child(); }

  RecorderCounters counters() const override;
  std::uint64_t anomalies() const override { return next_->anomalies(); }
  const std::string& attempt_dir() const override { return next_->attempt_dir(); }
  Status flush() override { return next_->flush(); }  // of what is not held
  Status close() override;

 private:
  class DeferredEvent;
  class DeferredOp;
  class DeferredHold;
  template <class Report>
  class DeferredReport;

  template <class Report>
  void hold(std::size_t bytes, Report report, std::span<const ValueView> views = {});
  void keep(std::unique_ptr<DeferredEvent> event);
  bool is_due() const;
  void keep_bound() noexcept;  // gives up the oldest
  void report_ready() noexcept;
  void forget(const DeferredEvent& event) noexcept;  // nothing that comes is for it any more
  void give_up(DeferredEvent& event) noexcept;
  void give_up_all() noexcept;
  // Hands an event on at once where nothing is held and nothing of it is late, else holds it.
  template <class Pass, class Hold>
  void in_order(bool late, Pass pass, Hold hold,
                std::uint64_t RecorderCounters::*lost = &RecorderCounters::dropped_other) noexcept;
  template <auto kHandler, auto kText, class Event>
  void pass_text(const Event& event) noexcept;
  void add_op(const OpEvent& event, const OpNumbers* numbers) noexcept;
  template <class Come>
  void come(std::uint64_t number, Come come) noexcept;

  const std::unique_ptr<NumberingRecorder> next_;
  const DeferredOptions options_;
  mutable std::mutex mutex_;  // not held while the one behind flushes
  std::deque<std::unique_ptr<DeferredEvent>> held_;
  std::unordered_multimap<std::uint64_t, DeferredEvent*> waiting_;  // views of several events may share a number
  std::size_t bytes_ = 0;
  std::uint64_t steps_ = 0, ops_ = 0;  // ops: held ones
  std::deque<DeferredHold*> undecided_;  // of held ones; nullptr: given up, and kept
  bool adds_to_hold_ = false;
  RecorderCounters lost_;              // events that there was no memory for
};

}  // namespace nanhunt::record
