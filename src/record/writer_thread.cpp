// SPDX-License-Identifier: Apache-2.0
#include "src/record/writer_thread.h"

#include <signal.h>

#include <exception>
#include <iterator>
#include <utility>

namespace nanhunt::record {
namespace {

// While it lives, new threads of this one start with every signal blocked that is not raised by a fault of their own:
// the run's handlers run in the run's threads, and SIGXFSZ (file size limit) becomes an error code of write().
class ScopedBlockedSignals {
 public:
  ScopedBlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~ScopedBlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  ScopedBlockedSignals(const ScopedBlockedSignals&) = delete;
  ScopedBlockedSignals& operator=(const ScopedBlockedSignals&) = delete;

 private:
  sigset_t saved_;
};

// rows = first + rows, and first is empty. On a throw nothing changed.
template <typename T>
void prepend(std::vector<T>& rows, std::vector<T>& first) {
  if (first.empty()) return;
  first.reserve(first.size() + rows.size());
  first.insert(first.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
  rows = std::move(first);
  first.clear();
}

}  // namespace

WriterThread::WriterThread(BatchQueue& queue, std::unique_ptr<TraceWriter> writer, std::chrono::milliseconds tick,
                           std::function<void()> on_tick)
    : queue_(queue),
      writer_(std::move(writer)),
      tick_(tick),
      on_tick_(std::move(on_tick)),
      attempt_dir_(writer_->attempt_dir()) {
  ScopedBlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

WriterThread::~WriterThread() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void WriterThread::join() {
  if (thread_.joinable()) thread_.join();
}

WriterThread::Failures WriterThread::failures() const {
  std::lock_guard lock(mutex_);
  return failures_;
}

void WriterThread::note_failure(const Status& status) {
  std::lock_guard lock(mutex_);
  if (failures_.errors++ == 0) failures_.first = status;
}

void WriterThread::run() {
  auto next_tick = BatchQueue::Clock::now() + tick_;
  for (;;) {
    auto item = queue_.pop(next_tick);
    if (item) {
      write(item->batch, item->next_seq);
      queue_.done(std::move(item->batch));
    } else if (queue_.closed()) {
      break;
    }
    if (BatchQueue::Clock::now() >= next_tick) {
      on_tick_();
      next_tick = BatchQueue::Clock::now() + tick_;
    }
  }
  if (unreported_.any()) {  // the disk may have room again
    RecordBatch last;
    write(last, kNoSeq);
  }
  try {
    const Status end = writer_->close();
    if (!end) note_failure(end);
  } catch (const std::exception& e) {
    note_failure({StatusCode::kWriteFailed, std::string("cannot end the trace: ") + e.what()});
  }
}

void WriterThread::write(RecordBatch& batch, std::uint64_t next_seq) {
  Status status;
  RecordBatch unwritten;
  const RecordBatch* lost = &unwritten;
  try {
    prepend(batch.strings, carried_.strings);
    prepend(batch.layouts, carried_.layouts);
    if (unreported_.any()) {
      batch.drops.push_back({next_seq, unreported_.ops, unreported_.values, unreported_.other});
      unreported_ = {};
    }
    status = writer_->write(batch, &unwritten);
  } catch (const std::exception& e) {
    status = {StatusCode::kWriteFailed, std::string("cannot write to the trace: ") + e.what()};
    lost = &batch;  // how much of it got there is not known
  }
  if (status) return;

  note_failure(status);
  const Dropped rows = rows_of(*lost);
  unreported_.add(rows);
  // What the batch was to report goes unreported with it.
  for (const DropRecord& drop : lost->drops) unreported_.add({drop.ops, drop.values, drop.other});
  if (carried_.strings.empty()) carried_.strings = std::move(batch.strings);
  if (carried_.layouts.empty()) carried_.layouts = std::move(batch.layouts);
  std::lock_guard lock(mutex_);
  failures_.dropped.add(rows);
}

}  // namespace nanhunt::record
