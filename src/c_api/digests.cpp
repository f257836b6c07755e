// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/digests.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "src/fleet/make_digest.h"
#include "src/record/blocked_signals.h"
#include "src/record/recorder.h"

namespace nanhunt::c_api {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kEvery = std::chrono::minutes(5);
constexpr int kRest = 1000;  // times as long as the last one took, at least
constexpr std::uint64_t kMaxTraceBytes = 64u << 20;

// What cannot be made or written is made by whoever reads the run. `open`: the recorder, while it is.
void write_digest_of(record::NumberingRecorder* open, const std::string& attempt_dir) noexcept {
  try {
    if (open != nullptr) (void)open->flush().is_ok();
    if (fleet::segment_bytes(attempt_dir) > kMaxTraceBytes) return;
    const auto digest = fleet::make_digest(attempt_dir);
    if (digest) (void)fleet::write_digest(attempt_dir, *digest).is_ok();
  } catch (...) {  // no memory
  }
}

}  // namespace

struct DigestWriter::Thread {
  explicit Thread(record::NumberingRecorder& of) : recorder(of) {
    const record::ScopedBlockedSignals blocked;
    thread = std::thread([this] { run(); });
  }

  void run() noexcept {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);  // training comes first
    std::unique_lock lock(mutex);
    Clock::duration rest = kEvery;
    for (;;) {
      changed.wait_for(lock, rest, [&] { return due || ends; });
      if (ends) return;
      due = false;
      lock.unlock();
      const Clock::time_point began = Clock::now();
      write_digest_of(&recorder, recorder.attempt_dir());
      rest = std::max<Clock::duration>(kEvery, kRest * (Clock::now() - began));
      lock.lock();
    }
  }

  record::NumberingRecorder& recorder;
  std::mutex mutex;
  std::condition_variable changed;
  bool due = true, ends = false;
  std::thread thread;
};

DigestWriter::DigestWriter() = default;
DigestWriter::~DigestWriter() = default;

void DigestWriter::write_soon(record::NumberingRecorder& recorder) {
  if (recorder.in_forked_child()) return;
  asked_ = true;
  if (thread_ == nullptr) {
    thread_ = std::make_unique<Thread>(recorder);
    return;
  }
  const std::lock_guard lock(thread_->mutex);
  thread_->due = true;
  thread_->changed.notify_one();
}

void DigestWriter::stop(const record::NumberingRecorder& recorder) noexcept {
  if (thread_ == nullptr) return;
  if (recorder.in_forked_child()) {  // the thread is not here: its lock can neither be waited for nor destroyed
    (void)thread_.release();
    return;
  }
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->ends = true;
  }
  thread_->changed.notify_one();
  thread_->thread.join();
  thread_.reset();
}

void DigestWriter::write_last(const record::NumberingRecorder& recorder) noexcept {
  if (asked_ && !recorder.in_forked_child()) write_digest_of(nullptr, recorder.attempt_dir());
}

}  // namespace nanhunt::c_api
