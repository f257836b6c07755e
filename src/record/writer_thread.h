// SPDX-License-Identifier: Apache-2.0
// The thread that owns the TraceWriter. It never stops the run: a batch that cannot be written is counted, its
// strings and layouts are carried to the next one, and the run goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/record/batch_queue.h"
#include "src/record/pending_rows.h"

namespace nanhunt::record {

class WriterThread {
 public:
  // `on_tick` is called every `tick`, from this thread, between writes. May throw std::system_error.
  WriterThread(BatchQueue& queue, std::unique_ptr<TraceWriter> writer, std::chrono::milliseconds tick,
               std::function<void()> on_tick);
  ~WriterThread();

  // After the queue was closed: returns when what was left and the end chunk are written.
  void join();

  struct Failures {
    Dropped dropped;
    std::uint64_t errors = 0;
    Status first;
  };
  Failures failures() const;
  const std::string& attempt_dir() const { return attempt_dir_; }

 private:
  void run();
  void write(RecordBatch& batch, std::uint64_t next_seq);
  void note_failure(const Status& status);

  BatchQueue& queue_;
  std::unique_ptr<TraceWriter> writer_;
  const std::chrono::milliseconds tick_;
  const std::function<void()> on_tick_;
  const std::string attempt_dir_;

  // Only the thread touches these.
  RecordBatch carried_;  // strings and layouts of batches that were lost
  Dropped unreported_;   // lost rows that no DropRecord in the file tells of yet

  mutable std::mutex mutex_;
  Failures failures_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace nanhunt::record
