// SPDX-License-Identifier: Apache-2.0
#include "src/record/batch_queue.h"

#include <utility>

#include "src/core/waiting.h"

namespace nanhunt::record {
namespace {

constexpr std::size_t kMaxSpares = 3;

}  // namespace

bool BatchQueue::has_room(std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  return fits(bytes);
}

void BatchQueue::wait_for_room(std::size_t bytes, Clock::duration max_age) {
  std::unique_lock lock(mutex_);
  wait_until_true(released_, lock, [&] {
    return closed_ || (fits(bytes) && (items_.empty() || Clock::now() - items_.front().since <= max_age));
  });
}

void BatchQueue::push(Item&& item) {
  {
    std::lock_guard lock(mutex_);
    items_.emplace_back();  // may throw, before anything moved
    items_.back() = std::move(item);
    items_.back().since = Clock::now();
    queued_bytes_ += items_.back().bytes;
    ++pushed_;
  }
  changed_.notify_one();
}

std::optional<BatchQueue::Item> BatchQueue::pop(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !items_.empty() || closed_; });
  if (items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  queued_bytes_ -= item.bytes;
  lock.unlock();
  released_.notify_all();
  return item;
}

void BatchQueue::done(RecordBatch&& used) {
  used.clear();
  {
    std::lock_guard lock(mutex_);
    ++written_;
    if (spares_.size() < kMaxSpares) {
      try {
        spares_.push_back(std::move(used));
      } catch (...) {  // no memory: the batch is simply freed
      }
    }
  }
  released_.notify_all();
}

RecordBatch BatchQueue::empty_batch() {
  std::lock_guard lock(mutex_);
  if (spares_.empty()) return {};
  RecordBatch batch = std::move(spares_.back());
  spares_.pop_back();
  return batch;
}

void BatchQueue::wait_until_written() {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = pushed_;
  wait_until_true(released_, lock, [&] { return written_ >= target; });
}

void BatchQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  released_.notify_all();
}

bool BatchQueue::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace nanhunt::record
