// SPDX-License-Identifier: Apache-2.0
// The rings of record_ring.h in memory, their copies and the thread that drains them.
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/device_recorder_ring.h"
#include "kernels/cuda/record_drain.h"
#include "kernels/device_recorder.h"

namespace nanhunt::kernels {
namespace cuda {
namespace {

__global__ void advance_step_kernel(RingHeader* header) { ++header->step; }

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
    const DeviceGuard guard(options_.device);
    // The device may be lost: what fails here is nobody's business any more.
    if (side_ != nullptr) static_cast<void>(cudaStreamSynchronize(side_));
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
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
    void* got = nullptr;
    if (Status s = status_of(cudaMalloc(&got, bytes()), "no memory for records on the device"); !s) return s;
    ring_ = static_cast<unsigned char*>(got);
    if (Status s = status_of(cudaMemset(ring_, 0, bytes()), "the records' memory"); !s) return s;
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
    int least = 0;
    int most = 0;
    if (Status s = status_of(cudaDeviceGetStreamPriorityRange(&least, &most), "stream priorities"); !s) return s;
    if (Status s = status_of(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, least), "a stream for copies");
        !s) {
      return s;
    }
    if (Status s = status_of(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming), "an event"); !s) return s;
    copies_.resize(static_cast<std::size_t>(greater(options_.copies_in_flight, 1)));
    for (Copy& copy : copies_) {
      if (Status s = status_of(cudaHostAlloc(&got, bytes(), cudaHostAllocDefault), "no pinned memory for copies"); !s) {
        return s;
      }
      copy.bytes = static_cast<unsigned char*>(got);
      if (Status s = status_of(cudaEventCreateWithFlags(&copy.done, cudaEventDisableTiming), "an event"); !s) return s;
    }
    for (std::size_t i = 0; i < copies_.size(); ++i) free_.push_back(i);
    if (Status s = status_of(cudaDeviceSynchronize(), "the device did not answer"); !s) return s;
    drain_.emplace(reinterpret_cast<const DeviceRecord*>(mapped_),
                   reinterpret_cast<std::uint64_t*>(mapped_ + early_bytes), early_capacity_, capacity_, sink_);
    thread_ = std::thread([this] { drain(); });
    return Status::ok();
  }

  Ring ring() const override { return on_device_; }

  Status advance_step(DeviceStream stream) override {
    const DeviceGuard guard(options_.device);
    RingHeader* header = on_device_.header;
    void* arguments[] = {&header};
    const auto* function = reinterpret_cast<const void*>(&advance_step_kernel);
    return status_of(cudaLaunchKernel(function, dim3(1), dim3(1), arguments, 0, static_cast<cudaStream_t>(stream)),
                     "the step could not be counted");
  }

  Status copy_ring(DeviceStream stream) override {
    const DeviceGuard guard(options_.device);
    std::size_t which = 0;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) {  // the next copy takes what this one would have
        ++skipped_;
        return Status::ok();
      }
      which = free_.back();
      free_.pop_back();
    }
    const Status status = enqueue_copy(copies_[which], static_cast<cudaStream_t>(stream));
    {
      const std::lock_guard lock(mutex_);
      if (status) {
        in_flight_.push_back(which);
      } else {
        free_.push_back(which);
      }
    }
    wake_.notify_all();
    return status;
  }

  Status flush() override {
    const DeviceGuard guard(options_.device);
    if (Status s = status_of(cudaDeviceSynchronize(), "the device did not answer"); !s) return s;
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [&] { return in_flight_.empty(); });
    }
    if (Status s = copy_ring(side_); !s) return s;
    if (Status s = status_of(cudaStreamSynchronize(side_), "records could not be copied"); !s) return s;
    std::unique_lock lock(mutex_);
    const std::uint64_t round = rounds_;
    wake_.notify_all();
    idle_.wait(lock, [&] { return in_flight_.empty() && rounds_ > round; });
    return Status::ok();
  }

  DeviceRecorderCounts counts() const override {
    const std::lock_guard lock(mutex_);
    DeviceRecorderCounts counts = counts_;
    counts.copies_skipped = skipped_;
    return counts;
  }

 private:
  struct Copy {
    unsigned char* bytes = nullptr;
    cudaEvent_t done = nullptr;
  };

  std::size_t bytes() const { return kHeaderBytes + std::size_t{capacity_} * sizeof(DeviceRecord); }

  Status enqueue_copy(const Copy& copy, cudaStream_t after) {
    if (Status s = status_of(cudaEventRecord(order_, after), "the order of a copy"); !s) return s;
    if (Status s = status_of(cudaStreamWaitEvent(side_, order_, 0), "the order of a copy"); !s) return s;
    if (Status s = status_of(cudaMemcpyAsync(copy.bytes, ring_, bytes(), cudaMemcpyDeviceToHost, side_),
                             "records could not be copied");
        !s) {
      return s;
    }
    return status_of(cudaEventRecord(copy.done, side_), "the end of a copy");
  }

  // The thread's. Holds the lock only around the lists, so a hook never waits for a sink.
  void drain() {
    static_cast<void>(cudaSetDevice(options_.device));
    bool lost = false;  // the device answers no more
    for (;;) {
      bool stopping = false;
      std::vector<std::size_t> waiting;
      {
        const std::lock_guard lock(mutex_);
        stopping = stop_;
        waiting.assign(in_flight_.begin(), in_flight_.end());
      }
      drain_->poll_early();
      std::size_t taken = 0;
      for (const std::size_t which : waiting) {
        const Copy& copy = copies_[which];
        const cudaError_t state = lost ? cudaErrorUnknown : cudaEventQuery(copy.done);
        if (state == cudaErrorNotReady) break;
        if (state == cudaSuccess) {
          drain_->take_copy(*reinterpret_cast<const RingHeader*>(copy.bytes),
                            reinterpret_cast<const DeviceRecord*>(copy.bytes + kHeaderBytes));
        } else {
          lost = true;
          static_cast<void>(cudaGetLastError());
        }
        ++taken;
      }
      drain_->poll_early();
      std::unique_lock lock(mutex_);
      for (std::size_t i = 0; i < taken; ++i) {
        free_.push_back(in_flight_.front());
        in_flight_.pop_front();
      }
      counts_ = drain_->counts();
      ++rounds_;
      idle_.notify_all();
      if (stopping) return;
      wake_.wait_for(lock, std::chrono::milliseconds(greater(options_.poll_ms, 1)));
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

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<std::size_t> free_;
  std::deque<std::size_t> in_flight_;
  DeviceRecorderCounts counts_;
  std::uint64_t skipped_ = 0, rounds_ = 0;
  bool stop_ = false;
  std::optional<RecordDrain> drain_;
  std::thread thread_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceRecorder>> DeviceRecorder::create(const DeviceRecorderOptions& options, Sink sink) {
  constexpr std::uint32_t kMost = std::uint32_t{1} << 24;
  if (options.capacity == 0 || options.capacity > kMost || options.flagged_capacity > kMost) {
    return Status(StatusCode::kUsage, "[device recorder] expected capacities from 1 to " + std::to_string(kMost));
  }
  auto recorder = std::make_unique<cuda::CudaRecorder>(options, std::move(sink));
  if (Status status = recorder->allocate_all(); !status) return status;
  return std::unique_ptr<DeviceRecorder>(std::move(recorder));
}

}  // namespace nanhunt::kernels
