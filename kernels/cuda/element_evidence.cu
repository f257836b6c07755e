// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/element_evidence.h"

#include <cstddef>

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/origin_histograms.h"
#include "kernels/cuda/device_row_threads.h"
#include "kernels/cuda/launch.h"

namespace nanhunt::kernels::cuda {

namespace {
const void* evidence_function() {
  return reinterpret_cast<const void*>(&run_kernel<EvidenceKernel, EvidenceKernel::kThreads>);
}
const void* updates_function() {
  return reinterpret_cast<const void*>(&run_kernel<LostUpdatesKernel, LostUpdatesKernel::kThreads>);
}
const void* origins_function() { return reinterpret_cast<const void*>(&run_each<OriginKernel>); }
}  // namespace

// As kNoEvidence has it.
cudaError_t open_evidence(EvidenceSoFar*& memory, cudaStream_t stream) {
  cudaFuncAttributes loaded{};
  cudaError_t error = cudaFuncGetAttributes(&loaded, evidence_function());
  void* got = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&got, sizeof(EvidenceSoFar));
  memory = static_cast<EvidenceSoFar*>(got);
  if (error == cudaSuccess) error = cudaMemsetAsync(got, 0, sizeof(EvidenceSoFar), stream);
  return error == cudaSuccess ? cudaMemsetAsync(got, 0xff, offsetof(EvidenceSoFar, flushed), stream) : error;
}

cudaError_t launch_evidence(const EvidenceKernel& kernel, cudaStream_t stream) {
  return launch_kernel(evidence_function(), kernel.blocks(), EvidenceKernel::kThreads, kernel, stream);
}

cudaError_t open_updates(LostUpdatesKernel::Memory*& memory, cudaStream_t stream) {
  cudaFuncAttributes loaded{};
  cudaError_t error = cudaFuncGetAttributes(&loaded, updates_function());
  void* got = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&got, sizeof(LostUpdatesKernel::Memory));
  memory = static_cast<LostUpdatesKernel::Memory*>(got);
  return error == cudaSuccess ? cudaMemsetAsync(got, 0, sizeof(LostUpdatesKernel::Memory), stream) : error;
}

cudaError_t launch_updates(const LostUpdatesKernel& kernel, cudaStream_t stream) {
  return launch_kernel(updates_function(), kernel.blocks(), LostUpdatesKernel::kThreads, kernel, stream);
}

cudaError_t launch_origins(const OriginKernel& kernel, cudaStream_t stream) {
  return launch_kernel(origins_function(), 1, 1, kernel, stream);
}

cudaError_t load_origins() {
  cudaFuncAttributes loaded{};
  return cudaFuncGetAttributes(&loaded, origins_function());
}

}  // namespace nanhunt::kernels::cuda
