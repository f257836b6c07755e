// SPDX-License-Identifier: Apache-2.0
// The thread that owns the TraceWriter. It never stops the run: a batch that cannot be written is counted, its
// strings and layouts are carried to the next one, and the run goes on. Batches that the run handed over before it
// knew of the failure may name values that are not in the file: they are not written either.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/record/batch_queue.h"
#include "src/record/rows/pending_rows.h"

namespace nanhunt::record {

class WriterThread {
 public:
  // `on_tick` is called every `tick`, from this thread, between writes.
  WriterThread(BatchQueue& queue, std::unique_ptr<TraceWriter> writer, std::chrono::milliseconds tick,
               std::function<void()> on_tick);
  ~WriterThread();

  // Once, when the owner is ready for `on_tick`. May throw std::system_error.
  void start();

  // After the queue was closed: returns when what was left and the end chunk are written.
  void join();

  struct Failures {
    Dropped dropped;
    std::uint64_t errors = 0;
    Status first;
  };
  Failures failures() const;
  Status outcome() const;  // of all writing so far, in words for whoever runs the training

  // Rows that the last failed write() kept out of the file; with them go all batches after `batch` that do not know
  // of it yet.
  struct LostRows {
    std::uint64_t failures = 0;  // failed writes so far
    std::uint64_t batch = 0;     // the one that failed
    bool all = false;            // every row of it; else the values below
    std::vector<ValueId> values;
  };
  std::uint64_t failed_writes() const { return failed_writes_.load(std::memory_order_acquire); }
  LostRows take_lost_rows();

  const std::string& attempt_dir() const { return attempt_dir_; }

 private:
  void run();
  void write(BatchQueue::Item& item);
  void lose(RecordBatch& batch, const RecordBatch& rows) noexcept;
  void note_failure(Status status) noexcept;
  void note_lost_rows(std::uint64_t batch, const RecordBatch* unwritten) noexcept;

  BatchQueue& queue_;
  std::unique_ptr<TraceWriter> writer_;
  const std::chrono::milliseconds tick_;
  const std::function<void()> on_tick_;
  const std::string attempt_dir_;

  // Only the thread touches these.
  struct Names {
    std::vector<StringRecord> strings;
    std::vector<LayoutRecord> layouts;
  };
  std::array<Names, 64> carried_;  // of batches that were lost, oldest first: room that is there when memory is not
  std::size_t carried_count_ = 0;
  Dropped unreported_;  // lost rows that no DropRecord in the file tells of yet

  mutable std::mutex mutex_;
  Failures failures_;
  LostRows lost_rows_;
  std::atomic<std::uint64_t> failed_writes_{0};
  std::thread thread_;
};

}  // namespace nanhunt::record
