// SPDX-License-Identifier: Apache-2.0
#include "src/record/writer_thread.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <utility>

#include "src/record/blocked_signals.h"

namespace nanhunt::record {
namespace {

// rows = first + rows, and first is empty. On a throw nothing changed.
template <typename T>
void prepend(std::vector<T>& rows, std::vector<T>& first) {
  if (first.empty()) return;
  first.reserve(first.size() + rows.size());
  first.insert(first.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
  rows = std::move(first);
  first.clear();
}

// Without memory for the words, a failure without words.
Status failure(const char* what, const std::exception& e) noexcept {
  try {
    return {StatusCode::kWriteFailed, std::string(what) + e.what()};
  } catch (...) {
    return {StatusCode::kWriteFailed, {}};
  }
}

}  // namespace

WriterThread::WriterThread(BatchQueue& queue, std::unique_ptr<TraceWriter> writer, std::chrono::milliseconds tick,
                           std::function<void()> on_tick)
    : queue_(queue),
      writer_(std::move(writer)),
      tick_(tick),
      on_tick_(std::move(on_tick)),
      attempt_dir_(writer_->attempt_dir()) {}

void WriterThread::start() {
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

Status WriterThread::outcome() const {
  const Failures lost = failures();
  if (lost.errors == 0) return {};
  return {
      lost.first.code(),
      fmt::format("the trace in {} is incomplete, {} ops and {} values were lost: {}. What was written before stays "
                  "readable; make room or choose another folder, then run again",
                  attempt_dir_, lost.dropped.ops, lost.dropped.values, lost.first.message())};
}

void WriterThread::note_failure(Status status) noexcept {
  std::lock_guard lock(mutex_);
  if (failures_.errors++ == 0) failures_.first = std::move(status);
}

void WriterThread::run() {
  auto next_tick = BatchQueue::Clock::now() + tick_;
  for (;;) {
    auto item = queue_.pop(next_tick);
    if (item) {
      write(*item);
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
    BatchQueue::Item last;
    last.next_seq = kNoSeq;
    last.failures_known = failed_writes();
    write(last);
  }
  try {
    Status end = writer_->close();
    if (!end) note_failure(std::move(end));
  } catch (const std::exception& e) {
    note_failure(failure("cannot end the trace: ", e));
  }
}

WriterThread::LostRows WriterThread::take_lost_rows() {
  std::lock_guard lock(mutex_);
  LostRows lost = std::move(lost_rows_);
  lost_rows_ = {};
  lost.failures = failed_writes_.load(std::memory_order_relaxed);
  return lost;
}

// `unwritten` null: nothing of the batch is in the file.
void WriterThread::note_lost_rows(std::uint64_t batch, const RecordBatch* unwritten) noexcept {
  std::lock_guard lock(mutex_);
  lost_rows_.batch = batch;
  lost_rows_.all = unwritten == nullptr;
  lost_rows_.values.clear();
  if (unwritten != nullptr) {
    try {
      for (const ValueRecord& value : unwritten->values) lost_rows_.values.push_back(value.id);
    } catch (...) {  // no memory: then all of it counts as lost, and some rows are written twice
      lost_rows_.all = true;
    }
  }
  failed_writes_.fetch_add(1, std::memory_order_release);
}

// `rows` of the batch are not in the file and will not be; its names go with the next one.
void WriterThread::lose(RecordBatch& batch, const RecordBatch& rows) noexcept {
  Dropped lost = rows_of(rows);
  Dropped unreported = lost;
  // What the batch was to report goes unreported with it.
  for (const DropRecord& drop : rows.drops) unreported.add({drop.ops, drop.values, drop.other});
  if (!batch.strings.empty() || !batch.layouts.empty()) {
    Names* names = nullptr;
    if (carried_count_ < carried_.size()) {
      names = &carried_[carried_count_++];
    } else {
      names = &carried_.back();
      try {
        prepend(batch.strings, names->strings);
        prepend(batch.layouts, names->layouts);
      } catch (...) {  // still no memory: these names are lost as well
        const std::uint64_t gone = batch.strings.size() + batch.layouts.size();
        lost.other += gone;
        unreported.other += gone;
        names = nullptr;
      }
    }
    if (names != nullptr) {
      names->strings = std::move(batch.strings);
      names->layouts = std::move(batch.layouts);
    }
  }
  unreported_.add(unreported);
  std::lock_guard lock(mutex_);
  failures_.dropped.add(lost);
}

void WriterThread::write(BatchQueue::Item& item) {
  RecordBatch& batch = item.batch;
  if (item.failures_known != failed_writes()) return lose(batch, batch);
  Status status;
  RecordBatch unwritten;
  const RecordBatch* lost = &unwritten;
  const Dropped told = unreported_;
  try {
    while (carried_count_ > 0) {  // newest first: the oldest ends up in front
      Names& names = carried_[carried_count_ - 1];
      prepend(batch.strings, names.strings);
      prepend(batch.layouts, names.layouts);
      --carried_count_;
    }
    if (told.any()) {
      batch.drops.push_back({item.next_seq, told.ops, told.values, told.other});
      unreported_ = {};
    }
    status = writer_->write(batch, &unwritten);
  } catch (const std::exception& e) {
    status = failure("cannot write to the trace: ", e);
    lost = &batch;  // how much of it got there is not known
  }
  if (status) return;
  note_failure(std::move(status));
  // Rows that name no value or whose values are there leave no hole that a later row could fall into.
  if (lost == &batch || !unwritten.values.empty()) note_lost_rows(item.number, lost == &unwritten ? lost : nullptr);
  lose(batch, *lost);
}

}  // namespace nanhunt::record
