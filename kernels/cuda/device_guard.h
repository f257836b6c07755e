// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as Status, and the calling thread's device, context and capture mode put back.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/current_device.h"
#include "nanhunt/status.h"

namespace nanhunt::kernels::cuda {

// What failed is said here and not left for somebody else's next check.
inline Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kUnsupported, std::string("[cuda] ") + what + ": " + cudaGetErrorString(error)};
}

// Throws what a call of the runtime says, with what was being done.
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(std::string("cuda: ") + doing + ": " + cudaGetErrorString(status) + " (" +
                           cudaGetErrorName(status) + ")");
}

// The driver that the runtime has loaded. Request by name, because linking libcuda would tie a build to machines that
// have it.
struct ContextCalls {
  decltype(&::cuCtxGetCurrent) get = nullptr;
  decltype(&::cuCtxSetCurrent) set = nullptr;
  decltype(&::cuDevicePrimaryCtxGetState) state = nullptr;
  decltype(&::cuEventQuery) query = nullptr;

  ContextCalls() {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver == nullptr) return;
    get = reinterpret_cast<decltype(get)>(dlsym(driver, "cuCtxGetCurrent"));
    set = reinterpret_cast<decltype(set)>(dlsym(driver, "cuCtxSetCurrent"));
    state = reinterpret_cast<decltype(state)>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
    query = reinterpret_cast<decltype(query)>(dlsym(driver, "cuEventQuery"));
    dlclose(driver);  // the runtime keeps it
  }
};
inline const ContextCalls& context_calls() {
  static const ContextCalls calls;
  return calls;
}

// For CurrentDevice. device() comes first and loads the driver.
struct RuntimeCalls {
  static bool worked(cudaError_t error) {
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    return error == cudaSuccess;
  }
  bool device(int& index) const { return worked(cudaGetDevice(&index)); }
  bool set_device(int index) const { return worked(cudaSetDevice(index)); }
  bool context(void*& current) const {
    const auto get = context_calls().get;
    CUcontext context = nullptr;
    if (get == nullptr || context_calls().set == nullptr || get(&context) != CUDA_SUCCESS) return false;
    current = context;
    return true;
  }
  bool set_context(void* current) const { return context_calls().set(static_cast<CUcontext>(current)) == CUDA_SUCCESS; }
  bool has_context(int index) const {
    unsigned flags = 0;
    int active = 0;
    const auto state = context_calls().state;
    return state == nullptr || state(index, &flags, &active) != CUDA_SUCCESS || active != 0;
  }
  // Without this a cudaMalloc or cudaEventQuery here would break a graph that another thread is capturing.
  bool relax(int& mode) const {
    cudaStreamCaptureMode exchanged = cudaStreamCaptureModeRelaxed;
    if (!worked(cudaThreadExchangeStreamCaptureMode(&exchanged))) return false;
    mode = exchanged;
    return true;
  }
  bool restore_mode(int mode) const {
    auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
    return worked(cudaThreadExchangeStreamCaptureMode(&exchanged));
  }
};
using DeviceGuard = CurrentDevice<RuntimeCalls>;

// Of an event, with its device current. The runtime keeps "not ready" as the thread's last error, in the place of one
// that the run has not asked for yet; the driver keeps nothing.
inline cudaError_t state_of(cudaEvent_t event) {
  const auto query = context_calls().query;
  const CUresult result = query == nullptr ? CUDA_ERROR_NOT_INITIALIZED : query(event);
  if (result == CUDA_SUCCESS) return cudaSuccess;
  if (result == CUDA_ERROR_NOT_READY) return cudaErrorNotReady;
  const cudaError_t state = cudaEventQuery(event);
  if (state != cudaSuccess) static_cast<void>(cudaGetLastError());
  return state;
}

// Work on other streams that waits for this one would become part of the graph being captured, and never join it again.
inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error == cudaErrorStreamCaptureImplicit || (error == cudaSuccess && status != cudaStreamCaptureStatusNone);
}

// Memory of the device filled with zeros, there when this returns. On a stream of its own: the legacy stream would wait
// for the run's streams, and break their captures.
inline cudaError_t clear_now(void* memory, std::size_t bytes, cudaStream_t own) {
  const cudaError_t error = cudaMemsetAsync(memory, 0, bytes, own);
  return error == cudaSuccess ? cudaStreamSynchronize(own) : error;
}

}  // namespace nanhunt::kernels::cuda
