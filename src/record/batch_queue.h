// SPDX-License-Identifier: Apache-2.0
// Batches on their way from the run's thread to the writer's thread, in order and bounded in bytes. A batch larger
// than the bound still passes when the queue is empty, so nothing waits for ever on its own size.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::record {

class BatchQueue {
 public:
  using Clock = std::chrono::steady_clock;
  explicit BatchQueue(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  struct Item {
    RecordBatch batch;
    std::size_t bytes = 0;
    std::uint64_t next_seq = 0;  // of the run when it was handed over
    std::uint64_t number = 0;    // of the batch, PendingRows::number
    std::uint64_t failures_known = 0;  // failed writes that its rows take into account
    Clock::time_point since;     // when it entered
  };

  // The writer takes nothing before it asks again, so a true answer stays true for the one thread that pushes.
  bool has_room(std::size_t bytes) const;
  // Waits until the bytes fit and no batch has been waiting for longer than `max_age`.
  void wait_for_room(std::size_t bytes, Clock::duration max_age);
  // Sets item.since. Strong exception guarantee: on a throw `item` is untouched.
  void push(Item&& item);

  // For the writer. Empty: nothing came before `deadline`, or closed and drained.
  std::optional<Item> pop(Clock::time_point deadline);
  // The popped item is dealt with; its memory is kept for the next batch.
  void done(RecordBatch&& used);

  // An empty batch, with memory of an earlier one where there is some.
  RecordBatch empty_batch();
  void wait_until_written();  // everything pushed so far was popped and done
  void close();
  bool closed() const;

 private:
  bool fits(std::size_t bytes) const { return items_.empty() || queued_bytes_ + bytes <= max_bytes_; }

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;   // the writer waits here
  std::condition_variable released_;  // the run waits here
  std::deque<Item> items_;
  std::vector<RecordBatch> spares_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t pushed_ = 0, written_ = 0;
  bool closed_ = false;
};

}  // namespace nanhunt::record
