// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_session.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device_guard.h"
#include "kernels/device_query.h"

namespace nanhunt::kernels {
namespace cuda {
namespace {

class CudaSession final : public DeviceSession {
 public:
  explicit CudaSession(int device) : device_(device) {}
  ~CudaSession() override {
    const DeviceGuard guard(device_);
    if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
    for (void* memory : owned_) static_cast<void>(cudaFree(memory));
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaGetLastError());
  }

  Status prepare() {
    if (Status s = status_of(cudaSetDevice(device_), "the device cannot be used"); !s) return s;
    if (Status s = status_of(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); !s) return s;
    if (Status s = status_of(cudaEventCreate(&begin_), "an event"); !s) return s;
    return status_of(cudaEventCreate(&end_), "an event");
  }

  DeviceStream stream() const override { return stream_; }

  void* allocate(std::size_t bytes) override {
    const DeviceGuard guard(device_);
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    owned_.push_back(memory);
    return memory;
  }
  void release(void* memory) override {
    const DeviceGuard guard(device_);
    static_cast<void>(cudaStreamSynchronize(stream_));
    owned_.erase(std::remove(owned_.begin(), owned_.end(), memory), owned_.end());
    static_cast<void>(cudaFree(memory));
  }
  std::size_t free_memory() const override {
    const DeviceGuard guard(device_);
    std::size_t free = 0;
    std::size_t total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }

  Status copy_in(void* to, const void* from, std::size_t bytes) override {
    return transfer(to, from, bytes, cudaMemcpyHostToDevice, true);
  }
  Status copy_out(void* to, const void* from, std::size_t bytes) override {
    return transfer(to, from, bytes, cudaMemcpyDeviceToHost, true);
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    return transfer(to, from, bytes, cudaMemcpyDeviceToDevice, false);
  }
  Status fill(void* to, int byte, std::size_t bytes) override {
    return status_of(cudaMemsetAsync(to, byte, bytes, stream_), "memory could not be filled");
  }
  Status wait() override { return status_of(cudaStreamSynchronize(stream_), "the device failed"); }

  Result<double> time(const std::function<Status()>& work) override {
    if (Status s = status_of(cudaEventRecord(begin_, stream_), "an event"); !s) return s;
    if (Status s = work(); !s) return s;
    if (Status s = status_of(cudaEventRecord(end_, stream_), "an event"); !s) return s;
    if (Status s = status_of(cudaEventSynchronize(end_), "the device failed"); !s) return s;
    float milliseconds = 0;
    if (Status s = status_of(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time"); !s) return s;
    return static_cast<double>(milliseconds);
  }

 private:
  Status transfer(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, bool wait_for_it) {
    if (Status s = status_of(cudaMemcpyAsync(to, from, bytes, kind, stream_), "memory could not be copied"); !s) {
      return s;
    }
    return wait_for_it ? wait() : Status::ok();
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<void*> owned_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceSession>> DeviceSession::open(int device) {
  std::string why_none;
  const std::vector<DeviceInfo> devices = query_devices(why_none);
  if (devices.empty()) return Status(StatusCode::kUnsupported, why_none);
  if (device < 0 || device >= static_cast<int>(devices.size())) {
    return Status(StatusCode::kUsage, "there is no device " + std::to_string(device));
  }
  auto session = std::make_unique<cuda::CudaSession>(device);
  if (Status status = session->prepare(); !status) return status;
  return std::unique_ptr<DeviceSession>(std::move(session));
}

}  // namespace nanhunt::kernels
