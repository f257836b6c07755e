// SPDX-License-Identifier: Apache-2.0
// The rings of record_ring.h in memory, their copies and the thread that drains them.
#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/device_recorder_ring.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/record_drain.h"
#include "kernels/device_recorder.h"

namespace nanhunt::kernels {
namespace cuda {
namespace {

__global__ void advance_step_kernel(RingHeader* header) { ++header->step; }
const void* const kAdvanceStep = reinterpret_cast<const void*>(&advance_step_kernel);

// One piece of memory: the header, padded to a record, then the slots.
constexpr std::size_t kHeaderBytes = sizeof(DeviceRecord);
static_assert(sizeof(RingHeader) <= kHeaderBytes);

class CudaRecorder final : public DeviceRecorder, public RingOwner {
 public:
  CudaRecorder(const DeviceRecorderOptions& options, Sink sink)
      : options_(options),
        capacity_(power_of_two_from(greater(options.capacity, 2u))),
        early_capacity_(power_of_two_from(greater(options.flagged_capacity, 2u))),
        sink_(std::move(sink)) {}

  ~CudaRecorder() override {
    if (pid_ != getpid()) {  // a forked child: the thread, and all that CUDA is, stayed behind
      static_cast<void>(lists_.release());
      return;
    }
    const DeviceGuard guard(options_.device);
    // The device may be lost: what fails here is nobody's business any more.
    if (side_ != nullptr) static_cast<void>(cudaStreamSynchronize(side_));
    {
      const std::lock_guard lock(lists_->mutex);
      lists_->stop = true;
    }
    lists_->wake.notify_all();
    if (lists_->thread.joinable()) lists_->thread.join();
    for (Copy& copy : copies_) {
      if (copy.done != nullptr) static_cast<void>(cudaEventDestroy(copy.done));
      static_cast<void>(cudaFreeHost(copy.bytes));
    }
    if (order_ != nullptr) static_cast<void>(cudaEventDestroy(order_));
    if (side_ != nullptr) static_cast<void>(cudaStreamDestroy(side_));
    static_cast<void>(cudaFreeHost(mapped_));
    static_cast<void>(cudaFree(ring_));
    static_cast<void>(cudaGetLastError());
  }

  Status allocate_all() {
    const DeviceGuard guard(options_.device);
    if (Status s = status_of(cudaSetDevice(options_.device), "the device cannot be used"); !s) return s;
    int least = 0;
    int most = 0;
    if (Status s = status_of(cudaDeviceGetStreamPriorityRange(&least, &most), "stream priorities"); !s) return s;
    if (Status s = status_of(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, least), "a stream for copies");
        !s) {
      return s;
    }
    void* got = nullptr;
    if (Status s = status_of(cudaMalloc(&got, bytes()), "no memory for records on the device"); !s) return s;
    ring_ = static_cast<unsigned char*>(got);
    if (Status s = status_of(clear_now(ring_, bytes(), side_), "the records' memory"); !s) return s;
    // Kernels are loaded when they are first used, which may wait for the device: now rather than within the run.
    cudaFuncAttributes loaded{};
    if (Status s = status_of(cudaFuncGetAttributes(&loaded, kAdvanceStep), "no code for this device"); !s) return s;
    // The early ring and, after it, how much of it was read.
    const std::size_t early_bytes = std::size_t{early_capacity_} * sizeof(DeviceRecord);
    if (Status s = status_of(cudaHostAlloc(&got, early_bytes + sizeof(DeviceRecord), cudaHostAllocMapped),
                             "no pinned memory for early records");
        !s) {
      return s;
    }
    mapped_ = static_cast<unsigned char*>(got);
    std::memset(mapped_, 0, early_bytes + sizeof(DeviceRecord));
    void* mapped_on_device = nullptr;
    if (Status s = status_of(cudaHostGetDevicePointer(&mapped_on_device, mapped_, 0), "pinned memory is not mapped");
        !s) {
      return s;
    }
    auto* header = reinterpret_cast<RingHeader*>(ring_);
    auto* early_on_device = static_cast<unsigned char*>(mapped_on_device);
    on_device_ = {header,
                  reinterpret_cast<DeviceRecord*>(ring_ + kHeaderBytes),
                  reinterpret_cast<DeviceRecord*>(early_on_device),
                  reinterpret_cast<const std::uint64_t*>(early_on_device + early_bytes),
                  capacity_,
                  early_capacity_};
    if (Status s = status_of(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming), "an event"); !s) return s;
    copies_.resize(static_cast<std::size_t>(greater(options_.copies_in_flight, 1)));
    for (Copy& copy : copies_) {
      if (Status s = status_of(cudaHostAlloc(&got, bytes(), cudaHostAllocDefault), "no pinned memory for copies"); !s) {
        return s;
      }
      copy.bytes = static_cast<unsigned char*>(got);
      if (Status s = status_of(cudaEventCreateWithFlags(&copy.done, cudaEventDisableTiming), "an event"); !s) return s;
    }
    // Room for all, so that neither the run nor the thread ever allocates for them.
    lists_->free.reserve(copies_.size());
    lists_->in_flight.reserve(copies_.size());
    for (std::size_t i = 0; i < copies_.size(); ++i) lists_->free.push_back(i);
    drain_.emplace(reinterpret_cast<const DeviceRecord*>(mapped_),
                   reinterpret_cast<std::uint64_t*>(mapped_ + early_bytes), early_capacity_, capacity_, sink_);
    waiting_.reserve(copies_.size());
    lists_->thread = std::thread([this] { drain(); });
    return Status::ok();
  }

  Ring ring() const override { return on_device_; }

  Status advance_step(DeviceStream stream) override {
    const DeviceGuard guard(options_.device);
    RingHeader* header = on_device_.header;
    return status_of(launch_kernel(kAdvanceStep, 1, 1, header, static_cast<cudaStream_t>(stream)),
                     "the step could not be counted");
  }

  Status copy_ring(DeviceStream stream) override { return copy_ring(stream, 0); }

  Status flush() override {
    const DeviceGuard guard(options_.device);
    if (Status s = copy_and_wait(0); !s || lists_->caught_up) return s;
    // What was written when that copy was taken is settled once the device has stopped again.
    return copy_and_wait(counts().written);
  }

  DeviceRecorderCounts counts() const override {
    const std::lock_guard lock(lists_->mutex);
    DeviceRecorderCounts counts = lists_->counts;
    counts.copies_skipped = lists_->skipped;
    return counts;
  }

 private:
  struct Copy {
    unsigned char* bytes = nullptr;
    cudaEvent_t done = nullptr;
    std::uint64_t settled = 0;  // numbers that nobody writes any more
  };
  // What the thread and the run share. Apart, so that a forked child can leave it as it is: what a thread that is not
  // there waits on cannot be destroyed.
  struct Lists {
    std::mutex mutex, ordering;  // ordering: of copies that several threads ask for, by one event
    std::condition_variable wake, idle;
    std::vector<std::size_t> free, in_flight;  // in_flight: oldest first
    DeviceRecorderCounts counts;
    std::uint64_t skipped = 0, rounds = 0;
    std::atomic<bool> caught_up{true};
    bool stop = false;
    std::thread thread;
  };

  Status copy_ring(DeviceStream stream, std::uint64_t settled) {
    const DeviceGuard guard(options_.device);
    const bool capturing = is_capturing(static_cast<cudaStream_t>(stream));
    Lists& lists = *lists_;
    std::size_t which = 0;
    {
      const std::lock_guard lock(lists.mutex);
      if (capturing || lists.free.empty()) {  // the next copy takes what this one would have
        ++lists.skipped;
        return Status::ok();
      }
      which = lists.free.back();
      lists.free.pop_back();
      copies_[which].settled = settled;
    }
    const Status status = enqueue_copy(copies_[which], static_cast<cudaStream_t>(stream));
    {
      const std::lock_guard lock(lists.mutex);
      (status ? lists.in_flight : lists.free).push_back(which);
    }
    lists.wake.notify_all();
    return status;
  }

  Status copy_and_wait(std::uint64_t settled) {
    if (Status s = status_of(cudaDeviceSynchronize(), "the device did not answer"); !s) return s;
    Lists& lists = *lists_;
    {
      std::unique_lock lock(lists.mutex);
      lists.idle.wait(lock, [&] { return lists.in_flight.empty(); });
    }
    if (Status s = copy_ring(side_, settled); !s) return s;
    if (Status s = status_of(cudaStreamSynchronize(side_), "records could not be copied"); !s) return s;
    std::unique_lock lock(lists.mutex);
    const std::uint64_t round = lists.rounds;
    lists.wake.notify_all();
    lists.idle.wait(lock, [&] { return lists.in_flight.empty() && lists.rounds > round; });
    return Status::ok();
  }

  std::size_t bytes() const { return kHeaderBytes + std::size_t{capacity_} * sizeof(DeviceRecord); }

  Status enqueue_copy(const Copy& copy, cudaStream_t after) {
    {
      const std::lock_guard lock(lists_->ordering);
      if (Status s = status_of(cudaEventRecord(order_, after), "the order of a copy"); !s) return s;
      if (Status s = status_of(cudaStreamWaitEvent(side_, order_, 0), "the order of a copy"); !s) return s;
    }
    if (Status s = status_of(cudaMemcpyAsync(copy.bytes, ring_, bytes(), cudaMemcpyDeviceToHost, side_),
                             "records could not be copied");
        !s) {
      return s;
    }
    return status_of(cudaEventRecord(copy.done, side_), "the end of a copy");
  }

  // The thread's. Holds the lock only around the lists, so a hook never waits for a sink. Nothing in it allocates.
  void drain() {
    static_cast<void>(cudaSetDevice(options_.device));
    // For good: else to ask for an event here would break a graph that another thread is capturing.
    int mode = 0;
    RuntimeCalls().relax(mode);
    Lists& lists = *lists_;
    bool lost = false;  // the device answers no more
    for (;;) {
      bool stopping = false;
      {
        const std::lock_guard lock(lists.mutex);
        stopping = lists.stop;
        waiting_ = lists.in_flight;
      }
      drain_->poll_early();
      std::size_t taken = 0;
      for (const std::size_t which : waiting_) {
        const Copy& copy = copies_[which];
        const cudaError_t state = lost ? cudaErrorUnknown : cudaEventQuery(copy.done);
        if (state != cudaSuccess) static_cast<void>(cudaGetLastError());  // "not ready" is remembered too
        if (state == cudaErrorNotReady) break;
        if (state == cudaSuccess) {
          drain_->take_copy(*reinterpret_cast<const RingHeader*>(copy.bytes),
                            reinterpret_cast<const DeviceRecord*>(copy.bytes + kHeaderBytes), copy.settled);
        } else {
          lost = true;
        }
        ++taken;
      }
      drain_->poll_early();
      std::unique_lock lock(lists.mutex);
      const auto first = lists.in_flight.begin(), end = first + static_cast<std::ptrdiff_t>(taken);
      lists.free.insert(lists.free.end(), first, end);
      lists.in_flight.erase(first, end);
      lists.counts = drain_->counts();
      lists.caught_up = drain_->caught_up();
      ++lists.rounds;
      lists.idle.notify_all();
      if (stopping) return;
      lists.wake.wait_for(lock, std::chrono::milliseconds(greater(options_.poll_ms, 1)));
    }
  }

  DeviceRecorderOptions options_;
  std::uint32_t capacity_, early_capacity_;
  Sink sink_;
  unsigned char* ring_ = nullptr;
  unsigned char* mapped_ = nullptr;
  Ring on_device_;
  cudaStream_t side_ = nullptr;
  cudaEvent_t order_ = nullptr;
  std::vector<Copy> copies_;

  const pid_t pid_ = getpid();
  std::unique_ptr<Lists> lists_ = std::make_unique<Lists>();
  std::vector<std::size_t> waiting_;  // the thread's own copy of what is in flight
  std::optional<RecordDrain> drain_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceRecorder>> DeviceRecorder::create(const DeviceRecorderOptions& options, Sink sink) {
  constexpr std::uint32_t kMost = std::uint32_t{1} << 24;
  if (options.capacity == 0 || options.capacity > kMost || options.flagged_capacity > kMost) {
    return Status(StatusCode::kUsage, "[device recorder] expected capacities from 1 to " + std::to_string(kMost));
  }
  try {
    auto recorder = std::make_unique<cuda::CudaRecorder>(options, std::move(sink));
    if (Status status = recorder->allocate_all(); !status) return status;
    return std::unique_ptr<DeviceRecorder>(std::move(recorder));
  } catch (const std::exception& e) {  // no memory, or no thread
    return Status(StatusCode::kUnsupported, std::string("[device recorder] ") + e.what());
  }
}

}  // namespace nanhunt::kernels
