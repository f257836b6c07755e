// SPDX-License-Identifier: Apache-2.0
// Lanes (lanes.h) on the device, and launching the engine's kernels. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/portable/constants.h"
#include "kernels/portable/lanes.h"
#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/launch.h"

namespace nanhunt::kernels::cuda {

// Half a warp. The other half does another row, so all shuffles name their own lanes.
class DeviceRowThreads {
 public:
  NANHUNT_HOST_DEVICE DeviceRowThreads() {
#if NANHUNT_ON_DEVICE
    lane_ = static_cast<int>(threadIdx.x % kLanes);
    mask_ = threadIdx.x % 32 < kLanes ? 0x0000ffffu : 0xffff0000u;
#endif
  }

  template <class F>
  NANHUNT_HOST_DEVICE void each(std::int64_t n, const F& f) const {
    for (std::int64_t i = lane_; i < n; i += kLanes) f(i);
  }
  template <class T, class F>
  NANHUNT_HOST_DEVICE T block_sum(std::int64_t n, const F& f) const {
    T sum = lane_sum<T>(lane_, n, f);
#if NANHUNT_ON_DEVICE
    for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_down_sync(mask_, sum, width, kLanes);
    sum = __shfl_sync(mask_, sum, 0, kLanes);
#endif
    return sum;
  }
  template <class T, class F>
  NANHUNT_HOST_DEVICE T sum(std::int64_t n, const F& f) const {
    return sum_of_blocks<T>(*this, n, f);
  }
  template <class T, class F>
  NANHUNT_HOST_DEVICE T largest(std::int64_t n, const F& f) const {
    T out = -kInfinity<T>;
    for (std::int64_t i = lane_; i < n; i += kLanes) {
      const T x = f(i);
      out = x > out ? x : out;
    }
#if NANHUNT_ON_DEVICE
    for (int width = kLanes / 2; width > 0; width /= 2) {
      const T other = __shfl_xor_sync(mask_, out, width, kLanes);
      out = other > out ? other : out;
    }
#endif
    return out;
  }

 private:
  int lane_ = 0;
  unsigned mask_ = 0xffffffffu;
};

inline constexpr int kThreads = 256;
inline constexpr std::int64_t kMaxBlocks = 1 << 16;  // beyond, every thread does several

template <class Kernel>
__global__ void __launch_bounds__(kThreads) run_each(const __grid_constant__ Kernel kernel) {
  const std::int64_t count = kernel.count(), step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) kernel(i);
}

template <class Kernel>
__global__ void __launch_bounds__(kThreads) run_rows(const __grid_constant__ Kernel kernel) {
  constexpr std::int64_t kRows = kThreads / kLanes;
  const DeviceRowThreads lanes;
  const std::int64_t count = kernel.count(), step = std::int64_t{gridDim.x} * kRows;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes; row < count; row += step) {
    kernel(lanes, row);
  }
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

template <class Kernel>
void launch_each(const Kernel& kernel, cudaStream_t stream) {
  const std::int64_t count = kernel.count();
  if (count == 0) return;
  const auto* function = reinterpret_cast<const void*>(&run_each<Kernel>);
  check(launch_kernel(function, blocks_for(count, kThreads), kThreads, kernel, stream),
        "launching an elementwise kernel");
}
template <class Kernel>
void launch_rows(const Kernel& kernel, cudaStream_t stream) {
  const std::int64_t count = kernel.count();
  if (count == 0) return;
  const auto* function = reinterpret_cast<const void*>(&run_rows<Kernel>);
  check(launch_kernel(function, blocks_for(count, kThreads / kLanes), kThreads, kernel, stream),
        "launching a kernel over rows");
}

}  // namespace nanhunt::kernels::cuda
