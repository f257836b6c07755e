// SPDX-License-Identifier: Apache-2.0
// A stream's work captured as a CUDA graph. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/device_lanes.h"

namespace nanhunt::kernels::cuda {

// While it lives, what this thread asks of the driver is not minded by its own capture: memory may be had.
class RelaxedCapture {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Ends a capture. nullptr, and why: nothing came of it.
inline cudaGraphExec_t end_stream_capture(cudaStream_t stream, std::string& why) {
  const auto worked = [&why](cudaError_t status, const char* doing) {
    if (status == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    why = std::string("cuda: ") + doing + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
    return false;
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (!worked(cudaStreamEndCapture(stream, &graph), "ending the capture of a graph")) return nullptr;
  if (graph == nullptr) {
    why = "cuda: the capture of a graph was broken off";
    return nullptr;
  }
  if (!worked(cudaGraphInstantiate(&executable, graph, 0), "making a graph")) executable = nullptr;
  static_cast<void>(cudaGraphDestroy(graph));
  return executable;
}

}  // namespace nanhunt::kernels::cuda
