// SPDX-License-Identifier: Apache-2.0
// Readings on a stream: records in device memory, their copies in pinned memory, an event for each copy.
#include "kernels/cuda/device_readings.h"

#include <cuda_runtime.h>

#include <exception>
#include <utility>

#include "kernels/cuda/device_findings.h"
#include "kernels/cuda/device_guard.h"

namespace nanhunt::kernels::cuda {
namespace {

class CudaReadings final : public ReadingsPort {
 public:
  CudaReadings(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaReadings() override {
    const DeviceGuard guard(device_);
    // Copies may be under way; where the device is lost this fails at once, and so does the rest.
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaFreeHost(host_));
    static_cast<void>(cudaFree(records_));
    static_cast<void>(cudaGetLastError());
  }

  Status open(const ReadingsOptions& options) {
    const DeviceGuard guard(device_);
    DeviceStatsOptions stats;
    stats.device = device_;
    stats.max_items = options.max_items;
    stats.check_memory = false;  // the engine's own
    auto made = DeviceStats::create(stats);
    if (!made) return made.status();
    stats_ = std::move(*made);
    const std::size_t bytes = options.tensors * sizeof(DeviceStatsRecord);
    void* got = nullptr;
    if (Status s = status_of(cudaMalloc(&got, bytes), "no memory for results on the device"); !s) return s;
    records_ = static_cast<DeviceStatsRecord*>(got);
    if (Status s = status_of(cudaHostAlloc(&got, bytes, cudaHostAllocDefault), "no pinned memory for results"); !s) {
      return s;
    }
    host_ = static_cast<DeviceStatsRecord*>(got);
    for (int i = 0; i < options.copies; ++i) {
      cudaEvent_t event = nullptr;
      if (Status s = status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"); !s) return s;
      events_.push_back(event);
    }
    return Status::ok();
  }

  Status launch(std::span<const DeviceTensor> tensors, StatsLevel level, std::size_t first) override {
    return stats_->enqueue(tensors, level, {records_ + first, nullptr, nullptr}, stream_);
  }
  Status launch(const DeviceStatsView& view, StatsLevel level, std::size_t slot) override {
    return stats_->enqueue(view, 0, level, {records_ + slot, nullptr, nullptr}, stream_);
  }
  Status launch(const FindingsCall& call, std::size_t of, std::size_t slot) override {
    const DeviceGuard guard(device_);
    try {
      launch_findings(call, records_ + of, reinterpret_cast<DeviceFindings*>(records_ + slot), stream_);
    } catch (const std::exception& e) {
      return {StatusCode::kUnsupported, e.what()};
    }
    return Status::ok();
  }
  Status launch(const UpdatesCall& call, std::size_t slot) override {
    const DeviceGuard guard(device_);
    return status_of(launch_updates(call, reinterpret_cast<DeviceUpdates*>(records_ + slot), stream_),
                     "updates could not be looked at");
  }
  Status copy(std::size_t first, std::size_t count) override {
    const DeviceGuard guard(device_);
    return status_of(cudaMemcpyAsync(host_ + first, records_ + first, count * sizeof(DeviceStatsRecord),
                                     cudaMemcpyDeviceToHost, stream_),
                     "results could not be copied");
  }
  Status mark(std::size_t which) override {
    const DeviceGuard guard(device_);
    return status_of(cudaEventRecord(events_[which], stream_), "the end of a copy");
  }
  Mark look(std::size_t which) override {
    const DeviceGuard guard(device_);
    const cudaError_t state = cudaEventQuery(events_[which]);
    if (state == cudaSuccess) return Mark::kReached;
    static_cast<void>(cudaGetLastError());
    return state == cudaErrorNotReady ? Mark::kPending : Mark::kFailed;
  }
  Status wait(std::size_t which) override {
    const DeviceGuard guard(device_);
    return status_of(cudaEventSynchronize(events_[which]), "the device did not answer");
  }
  const DeviceStatsRecord* records() const override { return host_; }

 private:
  int device_;
  cudaStream_t stream_;
  std::unique_ptr<DeviceStats> stats_;
  DeviceStatsRecord* records_ = nullptr;
  DeviceStatsRecord* host_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<ReadingsPort> open_readings_port(int device, DeviceStream stream, const ReadingsOptions& options,
                                                 std::string& why) {
  auto port = std::make_unique<CudaReadings>(device, static_cast<cudaStream_t>(stream));
  if (const Status status = port->open(options); !status) {
    why = status.message();
    return nullptr;
  }
  return port;
}

}  // namespace nanhunt::kernels::cuda
