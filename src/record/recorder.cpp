// SPDX-License-Identifier: Apache-2.0
#include "src/record/recorder.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "src/record/bad_ops.h"
#include "src/record/batch_queue.h"
#include "src/record/measure/fp_environment.h"
#include "src/record/device/deferred_recorder.h"
#include "src/record/rows/row_builder.h"
#include "src/record/writer_thread.h"

namespace nanhunt::record {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kBatchOps = 2048;  // rows are handed over after this many, or at a quarter of the queue's bytes

// A row is handed over a tick later, by the run's next event or else by the writer's thread, which may need two. Where
// the run waits for the writer a batch is in the queue for half of flush_ms, and a tick until the run looks again;
// together flush_ms. Writing comes on top.
milliseconds tick_of(int flush_ms) { return milliseconds(std::max(1, flush_ms / 4)); }
milliseconds queue_age_of(int flush_ms) { return milliseconds(std::max(1, flush_ms / 2)); }

std::atomic<std::uint64_t> forks{0};

// How often this process came out of a fork().
std::uint64_t forks_so_far() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

class RecorderImpl final : public NumberingRecorder {
 public:
  RecorderImpl(const RecorderOptions& options, std::unique_ptr<TraceWriter> writer)
      : options_(options),
        forks_(forks_so_far()),
        started_(BatchQueue::Clock::now()),
        builder_({options.stats, options.max_evidence, options.max_histograms, options.check_inputs, {}}),
        queue_(std::make_unique<BatchQueue>(std::max<std::size_t>(options.queue_bytes, 1))),
        writer_(std::make_unique<WriterThread>(*queue_, std::move(writer), tick_of(options.flush_ms),
                                               [this] { on_tick(); })) {
    writer_->start();  // not before writer_ is set: a tick looks at it
  }

  ~RecorderImpl() override {
    const Status ignored = close();  // whoever wants to know calls close() itself
    (void)ignored;
    if (in_forked_child()) {  // their thread is not here: its locks can neither be waited for nor destroyed
      (void)writer_.release();
      (void)queue_.release();
    }
  }

  void on_op(const OpEvent& event) noexcept override {
    add_op(event, [&] { return builder_.add_op(event); });
  }
  void on_op(const OpEvent& event, const OpNumbers& numbers) noexcept override {
    add_op(event, [&] { return builder_.add_op(event, numbers); });
  }
  void on_mark(const MarkEvent& event) noexcept override {
    guarded(&Dropped::other, [&] {
      builder_.add_mark(event);
      ++marks_;
    });
  }
  void on_mark(const MarkEvent& event, StringId path, LayoutId layout) noexcept override {
    guarded(&Dropped::other, [&] {
      builder_.add_mark(event, path, layout);
      ++marks_;
    });
  }
  void on_batch(const BatchEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_batch(event); });
  }
  void on_scaler(const ScalerEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_scaler(event); });
  }
  void on_step_end(const StepEvent& event) noexcept override {
    guarded(&Dropped::other, [&] {
      const BatchQueue::Clock::time_point told(std::chrono::nanoseconds(event.at_ns));
      const std::chrono::nanoseconds since = (event.at_ns == 0 ? BatchQueue::Clock::now() : told) - started_;
      builder_.add_step(event, since.count());
      step_ = event.step;
      builder_.note_not_taken(step_);
    });
  }
  void on_storage_released(std::uint64_t storage) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_release(storage); });
  }
  void on_health(const HealthEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_health(event); });
  }
  void on_norm(const NormEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_norm(event); });
  }
  void on_unheard(const UnheardEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_unheard(event); });
  }
  void on_changed(const ChangedEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_changed(event); });
  }
  void check_contents(std::uint32_t step, const ValueView& value) noexcept override {
    guarded(&Dropped::other, [&] { builder_.check(step, value); });
  }
  void check_contents(std::uint32_t step, const ValueView& value, LayoutId layout) noexcept override {
    guarded(&Dropped::other, [&] { builder_.check(step, value, layout); });
  }
  void on_probe(const ProbeEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_probe(event); });
  }
  void on_capture(const CaptureEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_capture(event); });
  }
  void on_note(const NoteEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_note(event); });
  }
  void on_frame(const FrameEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_frame(event); });
  }
  void on_setup(const SetupEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_setup(event); });
  }
  void on_collective(const CollectiveEvent& event) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_collective(event); });
  }
  void on_kernel(const KernelEvent& event) noexcept override {
    guarded(&Dropped::other, [&] {
      KernelEvent placed = event;
      placed.seq = bad_ops_.op_of(event.seq);
      builder_.add_kernel(placed);
    });
  }
  void on_experiment(const ExperimentRecord& experiment) noexcept override {
    guarded(&Dropped::other, [&] { builder_.add_experiment(experiment); });
  }

  void on_hold(HoldAction action) noexcept override {
    guarded(&Dropped::other, [&] {
      if (action == HoldAction::kHold) {
        if (!holding_) {
          // What came before is not part of the hold, and does not wait for its end.
          const bool waits = BatchQueue::Clock::now() - handed_over_ >= tick_of(options_.flush_ms);
          if (builder_.rows().names_ops() || (waits && !builder_.empty())) hand_over();
          builder_.begin_hold();
          bad_since_.reset();
          hold_is_shown_ = false;
        }
        holding_ = true;
        builder_.trust_inputs(true);
        return;
      }
      if (!holding_) return;  // kLater: whoever stands before this decides
      holding_ = false;
      builder_.trust_inputs(false);
      if (action == HoldAction::kDrop && !hold_is_shown_) {
        bad_ops_.forget_from(builder_.drop_ops());
        held_dropped_ = {};
        kept_ops_ = kept_bytes_ = 0;
      } else {
        hand_over();  // it waits for room: what is wanted is not thinned
      }
    });
  }

  bool is_hold_due() noexcept override { return false; }
  void decide_hold(HoldAction) noexcept override {}
  void add_to_due_hold(bool) noexcept override {}

  // A forked child has no writer thread: it records nothing and leaves the parent's file alone. Request before any lock
  // is taken: whoever held it at the fork is not here to give it back.
  bool in_forked_child() const noexcept override { return forks_so_far() != forks_; }

  StringId number_text(std::string_view text) noexcept override {
    return numbered([&] { return builder_.number(text); });
  }
  LayoutId number_layout(const TensorView& tensor) noexcept override {
    return numbered([&] { return builder_.number(tensor); });
  }
  // Only the run's own events change these, and they do not overlap.
  std::size_t texts() const noexcept override { return builder_.strings().size(); }
  std::size_t layouts() const noexcept override { return builder_.layouts().size(); }
  std::string_view text(StringId id) const noexcept override {
    return id == 0 ? std::string_view() : builder_.strings().text(id);
  }
  const KnownLayout& layout(LayoutId id) const noexcept override { return builder_.layouts().layout(id); }
  std::uint64_t next_seq() const noexcept override { return builder_.next_seq(); }
  std::uint64_t bad_since(std::uint64_t seq) const noexcept override {
    if (in_forked_child()) return 0;
    try {
      const std::lock_guard lock(mutex_);
      return bad_ops_.since(seq);
    } catch (...) {  // the mutex itself failed
      return 0;
    }
  }
  std::uint64_t origins() const noexcept override { return origins_.load(std::memory_order_relaxed); }
  std::uint64_t origins_that_last() const noexcept override {
    return origins_that_last_.load(std::memory_order_relaxed);
  }
  void on_launch(std::uint64_t first, std::uint64_t count) noexcept override {
    if (in_forked_child()) return;
    try {
      const std::lock_guard lock(mutex_);
      bad_ops_.bind(first, count);
    } catch (...) {  // no memory: its kernels stand with its first op
    }
  }

  RecorderCounters counters() const override {
    if (in_forked_child()) return {};
    const WriterThread::Failures failures = writer_->failures();
    std::lock_guard lock(mutex_);
    Dropped all = dropped_;
    all.add(failures.dropped);
    RecorderCounters c;
    c.ops = ops_;
    c.values = builder_.values_made();
    c.marks = marks_;
    c.dropped_ops = all.ops;
    c.dropped_values = all.values;
    c.dropped_other = all.other + builder_.refused();
    c.deferred_readings = builder_.deferred_readings();
    c.deferred_lost = builder_.not_recorded().statistics;
    c.write_errors = failures.errors;
    c.first_write_error = failures.first.message();
    return c;
  }
  std::uint64_t anomalies() const override { return anomalies_.load(std::memory_order_relaxed); }
  const std::string& attempt_dir() const override { return writer_->attempt_dir(); }

  Status flush() override {
    if (in_forked_child()) return {};
    {
      std::lock_guard lock(mutex_);
      if (closed_) return close_status_;
      const Status handed = hand_over_all();
      if (!handed) return handed;
    }
    queue_->wait_until_written();
    return writer_->outcome();
  }

  Status close() override {
    if (in_forked_child()) return {};
    std::lock_guard lock(mutex_);
    if (closed_) return close_status_;
    closed_ = true;
    try {
      builder_.note_not_taken(step_);
    } catch (...) {  // no memory: the counters have it
    }
    const Status handed = hand_over_all();
    queue_->close();
    writer_->join();
    close_status_ = writer_->outcome();
    if (close_status_ && !handed) close_status_ = handed;
    return close_status_;
  }

 private:
  // Runs one event. Nothing it throws gets out, nor what its arithmetic does to the floating-point environment.
  template <typename Event>
  void guarded(std::uint64_t Dropped::*kind, Event&& event) noexcept {
    if (in_forked_child()) return;
    try {
      std::lock_guard lock(mutex_);
      ScopedDefaultFpEnvironment environment;
      try {
        if (closed_) return count_lost(kind);
        learn_of_failure();
        event();
      } catch (...) {  // no memory: the event is lost, the run is not
        return count_lost(kind);
      }
      try {
        hand_over_if_due();
      } catch (...) {  // no memory: the rows stay, the next event tries again
      }
    } catch (...) {  // the mutex itself failed
    }
  }

  template <typename Number>
  std::uint32_t numbered(Number&& number) noexcept {
    if (in_forked_child()) return 0;
    try {
      std::lock_guard lock(mutex_);
      return closed_ ? 0 : number();
    } catch (...) {  // no memory, or the mutex itself failed
      return 0;
    }
  }

  template <typename Add>
  void add_op(const OpEvent& event, Add add) noexcept {
    guarded(&Dropped::ops, [&] {
      const bool anomalous = add();
      ++ops_;
      if (!anomalous) return;
      if (builder_.began()) {
        origins_.fetch_add(1, std::memory_order_relaxed);
        const bool lasts = event.phase == Phase::kOptimizer || event.phase == Phase::kUpdate;
        if (lasts) origins_that_last_.fetch_add(1, std::memory_order_relaxed);
      }
      if (holding_ && builder_.began_number() && !bad_since_) bad_since_ = BatchQueue::Clock::now();
      if (anomalies_.fetch_add(1, std::memory_order_relaxed) == 0) hand_over_soon_ = true;
      try {
        bad_ops_.add(builder_.next_seq() - 1);
      } catch (...) {  // no memory: its rows say that it is bad
      }
    });
  }

  void count_lost(std::uint64_t Dropped::*kind) {
    ++(dropped_.*kind);
    ++(unreported_.*kind);
  }

  void hand_over_if_due() {
    const std::size_t ops = builder_.rows().batch.ops.size();
    std::size_t bytes = builder_.bytes();
    if (holding_ && !is_shown_early() && !is_hold_full(bytes)) return;
    const auto now = BatchQueue::Clock::now();
    if (!oldest_row_) oldest_row_ = now;
    const bool asked = hand_over_soon_ || tick_waits_.load(std::memory_order_relaxed) ||
                       now - *oldest_row_ >= tick_of(options_.flush_ms);
    if (!asked && ops < kept_ops_ + kBatchOps && bytes < kept_bytes_ + batch_bytes()) return;
    hand_over_soon_ = false;
    tick_waits_.store(false, std::memory_order_relaxed);
    if (options_.on_full == OnFull::kWait) {
      queue_->wait_for_room(bytes, queue_age_of(options_.flush_ms));
    } else if (!queue_->has_room(bytes)) {
      const Dropped dropped = builder_.thin_rows();
      dropped_.add(dropped);
      unreported_.add(dropped);
      // What is left is never dropped: it waits here for room, and once it is a batch of its own the run waits too.
      kept_ops_ = builder_.rows().batch.ops.size();
      kept_bytes_ = builder_.bytes();
      oldest_row_ = now;
      if (kept_bytes_ < batch_bytes()) return;
      queue_->wait_for_room(kept_bytes_, BatchQueue::Clock::duration::max());
    }
    push();
  }
  // Where badness began in the hold, a kill loses no more of it than of what is not held. Most steps end before.
  bool is_shown_early() {
    if (!hold_is_shown_ && (!bad_since_ || BatchQueue::Clock::now() - *bad_since_ < queue_age_of(options_.flush_ms))) return false;
    if (!std::exchange(hold_is_shown_, true)) hand_over_soon_ = true;
    return true;
  }
  // Past its bound what is routine goes first; what is left then goes on to the writer as ever.
  bool is_hold_full(std::size_t& bytes) {
    if (bytes < kept_bytes_ + options_.held_bytes) return false;
    held_dropped_.add(builder_.thin_rows());
    kept_bytes_ = bytes = builder_.bytes();
    if (bytes < options_.held_bytes / 2) return false;
    hand_over_soon_ = true;
    return true;
  }
  void hand_over() {
    queue_->wait_for_room(builder_.bytes(), BatchQueue::Clock::duration::max());
    push();
  }
  std::size_t batch_bytes() const { return std::max<std::size_t>(options_.queue_bytes / 4, 1); }

  Status hand_over_all() {
    try {
      learn_of_failure();
      if (builder_.empty() && !unreported_.any()) return {};
      hand_over();
      return {};
    } catch (const std::exception& e) {
      return {StatusCode::kWriteFailed,
              fmt::format("cannot hand the last rows to the writer of {}: {}", attempt_dir(), e.what())};
    }
  }

  void push() {
    dropped_.add(held_dropped_);
    unreported_.add(held_dropped_);
    held_dropped_ = {};
    if (unreported_.any()) {
      builder_.add_drop(unreported_);
      unreported_ = {};
    }
    BatchQueue::Item item;
    item.bytes = builder_.bytes();
    item.next_seq = builder_.next_seq();
    item.number = builder_.rows().number;
    item.failures_known = failures_known_;
    RecordBatch next = queue_->empty_batch();
    std::swap(item.batch, builder_.rows().batch);
    try {
      queue_->push(std::move(item));
    } catch (...) {
      std::swap(item.batch, builder_.rows().batch);
      throw;
    }
    builder_.begin_batch(std::move(next));
    kept_ops_ = 0;
    kept_bytes_ = 0;
    oldest_row_.reset();
    handed_over_ = BatchQueue::Clock::now();
  }

  // After a failed write the rows at hand may name values that are not in the file: they go, and whatever names such a
  // value from now on writes it again.
  void learn_of_failure() {
    if (writer_->failed_writes() == failures_known_) return;
    const Dropped dropped = builder_.drop_value_graph();
    dropped_.add(dropped);
    unreported_.add(dropped);
    const WriterThread::LostRows lost = writer_->take_lost_rows();
    builder_.forget_rows(lost.all ? lost.batch : lost.batch + 1, lost.values);
    failures_known_ = lost.failures;
    kept_ops_ = 0;
    kept_bytes_ = builder_.bytes();
  }

  // From the writer's thread. It must not wait for the run, which may be waiting for it.
  void on_tick() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
      tick_waits_.store(true, std::memory_order_relaxed);  // the event that is running hands over
      return;
    }
    try {
      learn_of_failure();
      if (closed_ || (holding_ && !is_shown_early()) || builder_.empty() || !queue_->has_room(builder_.bytes())) return;
      push();
    } catch (...) {  // no memory: the next tick tries again
    }
  }

  const RecorderOptions options_;
  const std::uint64_t forks_;  // when it was opened
  const BatchQueue::Clock::time_point started_;

  mutable std::mutex mutex_;  // held during an event, also while the event waits for room
  RowBuilder builder_;
  std::uint64_t ops_ = 0, marks_ = 0;
  std::atomic<std::uint64_t> anomalies_{0}, origins_{0}, origins_that_last_{0};
  BadOps bad_ops_;
  Dropped dropped_, unreported_;               // here, not by the writer; unreported: no DropRecord tells of them yet
  std::uint64_t failures_known_ = 0;           // WriterThread::failed_writes() that the rows at hand take into account
  std::optional<BatchQueue::Clock::time_point> oldest_row_;  // of the rows at hand, about
  std::size_t kept_ops_ = 0, kept_bytes_ = 0;  // of rows that stayed when the rest was thinned
  bool hand_over_soon_ = false;
  bool holding_ = false;  // rows stay here
  std::optional<BatchQueue::Clock::time_point> bad_since_;  // of the hold: the first number that is not finite
  bool hold_is_shown_ = false;  // for that reason a part of it has gone to the writer: the rest will too
  BatchQueue::Clock::time_point handed_over_{};  // last
  Dropped held_dropped_;  // of them
  std::uint32_t step_ = 0;  // that ended last
  std::atomic<bool> tick_waits_{false};
  bool closed_ = false;
  Status close_status_;
  std::unique_ptr<BatchQueue> queue_;
  std::unique_ptr<WriterThread> writer_;  // last: its thread uses everything above
};

template <typename Interface>
Result<std::unique_ptr<Interface>> make(const RecorderOptions& options, std::unique_ptr<TraceWriter> writer) {
  const std::string dir = writer->attempt_dir();
  try {
    auto recorder = std::make_unique<RecorderImpl>(options, std::move(writer));
    const DeferredOptions deferred{options.deferred_bytes, options.deferred_steps};
    return std::unique_ptr<Interface>(std::make_unique<DeferredRecorder>(std::move(recorder), deferred));
  } catch (const std::exception& e) {
    return Status(StatusCode::kWriteFailed, fmt::format("cannot start recording to {}: {}", dir, e.what()));
  }
}

}  // namespace

Result<std::unique_ptr<Recorder>> make_recorder(const RecorderOptions& options, std::unique_ptr<TraceWriter> writer) {
  return make<Recorder>(options, std::move(writer));
}

Result<std::unique_ptr<NumberingRecorder>> open_numbering_recorder(const RecorderOptions& options, RunInfo info) {
  auto writer = TraceWriter::create(options.run_dir, std::move(info), options.writer);
  if (!writer) return writer.status();
  return make<NumberingRecorder>(options, std::move(*writer));
}

}  // namespace nanhunt::record

namespace nanhunt {

Result<std::unique_ptr<Recorder>> Recorder::open(const RecorderOptions& options, RunInfo info) {
  auto writer = TraceWriter::create(options.run_dir, std::move(info), options.writer);
  if (!writer) return writer.status();
  return record::make_recorder(options, std::move(*writer));
}

}  // namespace nanhunt
