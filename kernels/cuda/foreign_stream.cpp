// SPDX-License-Identifier: Apache-2.0
#include "kernels/foreign_stream.h"

#include <cuda_runtime.h>

#include <exception>
#include <vector>

#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/device_readings.h"
#include "kernels/device_query.h"

namespace nanhunt::kernels {
namespace {

class CudaStream final : public ForeignStream {
 public:
  CudaStream(int device, DeviceStream stream) : device_(device), stream_(stream) {}

  bool is_capturing() override {
    const cuda::DeviceGuard guard(device_);  // stream 0 is the current device's
    return cuda::is_capturing(static_cast<cudaStream_t>(stream_));
  }
  std::unique_ptr<ReadingsPort> open_readings(const ReadingsOptions& options, std::string& why) override {
    return cuda::open_readings_port(device_, stream_, options, why);
  }

 private:
  int device_;
  DeviceStream stream_;
};

}  // namespace

std::unique_ptr<ForeignStream> ForeignStream::open(int device, DeviceStream stream, std::string& why) noexcept {
  if (stream == cudaStreamPerThread) {  // one name for as many streams as there are threads
    why = "the stream is the calling thread's default one, so its number names no single stream";
    return nullptr;
  }
  try {
    const std::vector<DeviceInfo> devices = query_devices(why);
    for (const DeviceInfo& info : devices) {
      if (info.index == device) return std::make_unique<CudaStream>(device, stream);
    }
    if (!devices.empty()) why = "there is no CUDA device " + std::to_string(device);
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
    why = "unknown error";
  }
  return nullptr;
}

}  // namespace nanhunt::kernels
