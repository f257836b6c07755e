// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_fused.h"

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/device_lanes.h"
#include "kernels/cuda/launch.h"

namespace nanhunt::kernels::cuda {
namespace {

// As many blocks to a multiprocessor as the look has, for it is the same arithmetic.
template <class Kernel>
const void* function_of(const Kernel&) {
  return reinterpret_cast<const void*>(&run_kernel<Kernel, kStatsThreads, 2>);
}

// Loading may wait for the device, so all of it is done at once.
template <class... F>
cudaError_t load(Formulas<F...>) {
  cudaError_t error = cudaSuccess;
  const auto one = [&](const auto& kernel) {
    cudaFuncAttributes loaded{};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&loaded, function_of(kernel));
  };
  (one(FusedMapKernel<F, DType::kF16>{}), ...);
  (one(FusedMapKernel<F, DType::kBF16>{}), ...);
  (one(FusedMapKernel<F, DType::kF32>{}), ...);
  return error;
}

}  // namespace

FusedMaps::~FusedMaps() { static_cast<void>(cudaFree(memory_.looks)); }

Status FusedMaps::arm(cudaStream_t stream) {
  if (memory_.looks == nullptr) {
    static_assert(sizeof(FusedLook) % 8 == 0 && sizeof(StatsPartial) % 8 == 0);
    const std::size_t partials = kFusedItems * sizeof(StatsPartial), looks = FusedLooks::kSlots * sizeof(FusedLook);
    const std::size_t bytes = looks + partials + 2 * sizeof(std::uint64_t);
    if (Status s = status_of(load(FusedFormulas{}), "maps with statistics cannot run"); !s) return s;
    void* got = nullptr;
    if (Status s = status_of(cudaMalloc(&got, bytes), "no memory for statistics of maps on the device"); !s) return s;
    if (Status s = status_of(cudaMemsetAsync(got, 0, bytes, stream), "memory could not be cleared"); !s) {
      static_cast<void>(cudaFree(got));
      return s;
    }
    auto* const at = static_cast<unsigned char*>(got);
    memory_.looks = reinterpret_cast<FusedLook*>(at);
    memory_.partials = reinterpret_cast<StatsPartial*>(at + looks);
    memory_.sum = reinterpret_cast<std::uint64_t*>(at + looks + partials);
    memory_.ticket = reinterpret_cast<std::uint32_t*>(memory_.sum + 1);
  }
  looks_.arm();
  return Status::ok();
}

bool FusedMaps::launch(const MapCall& call, cudaStream_t stream) {
  if (!looks_.is_armed() || !is_fused(call)) return false;
  const std::uint64_t bytes = output_bytes(call);
  const auto slot = looks_.take(call.out.data, bytes, call.out.dtype);
  if (!slot) return false;
  const auto blocks = static_cast<std::uint32_t>(stats_items(bytes));
  cudaError_t status = cudaSuccess;
  const auto launch_one = [&](auto kernel) {
    kernel.memory = memory_;
    kernel.slot = *slot;
    kernel.call = call;
    static_assert(sizeof kernel <= 4096);
    status = launch_kernel(function_of(kernel), blocks, kStatsThreads, kernel, stream);
  };
  with_fused_map(call, launch_one, FusedFormulas{});
  if (status != cudaSuccess) looks_.forget();
  check(status, "launching an elementwise kernel with statistics");
  return true;
}

}  // namespace nanhunt::kernels::cuda
