// SPDX-License-Identifier: Apache-2.0
// Block (block.h) on the device, and the kernel that runs any of them. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/portable/block.h"

namespace nanhunt::kernels::cuda {

// Methods are marked for both sides because kernel bodies are; only the device ever runs them.
template <class Shared>
class DeviceBlock {
 public:
  template <class T>
  struct Registers {
    T mine;
  };

  NANHUNT_HOST_DEVICE explicit DeviceBlock(Shared& shared) : shared_(shared) {
#if NANHUNT_ON_DEVICE
    thread_ = {threadIdx.x, blockDim.x, blockIdx.x, gridDim.x};
#endif
  }

  NANHUNT_HOST_DEVICE std::uint32_t index() const { return thread_.block; }
  NANHUNT_HOST_DEVICE std::uint32_t count() const { return thread_.blocks; }
  NANHUNT_HOST_DEVICE Shared& shared() { return shared_; }

  template <class Work>
  NANHUNT_HOST_DEVICE void phase(Work work) {
    work(static_cast<const Thread&>(thread_));
    barrier();
  }
  template <class T, class Work>
  NANHUNT_HOST_DEVICE void phase(Registers<T>& registers, Work work) {
    work(static_cast<const Thread&>(thread_), registers.mine);
    barrier();
  }
  template <class T, class U, class Work>
  NANHUNT_HOST_DEVICE void phase(Registers<T>& registers, Registers<U>& others, Work work) {
    work(static_cast<const Thread&>(thread_), registers.mine, others.mine);
    barrier();
  }
  // Lanes whose partner lies outside the warp take in themselves; nobody reads them.
  template <class T, class Fold>
  NANHUNT_HOST_DEVICE void fold_warps(Registers<T>& registers, Fold fold) {
    static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
#if NANHUNT_ON_DEVICE
    for (std::uint32_t width = kWarpLanes / 2; width > 0; width /= 2) {
      union {  // T may have member initialisers: copied as words, never constructed
        std::uint32_t words[sizeof(T) / sizeof(std::uint32_t)];
        unsigned long long aligned;
      };
      memcpy(words, &registers.mine, sizeof(T));
#pragma unroll
      for (std::uint32_t& word : words) word = __shfl_down_sync(0xffffffffu, word, width);
      T from;
      memcpy(&from, words, sizeof(T));
      fold(registers.mine, static_cast<const T&>(from));
    }
#endif
  }

 private:
  NANHUNT_HOST_DEVICE void barrier() {
#if NANHUNT_ON_DEVICE
    __syncthreads();
#endif
  }

  Shared& shared_;
  Thread thread_;
};

// The kernel's struct is its parameter, read from the constant bank where it lies: up to 32,764 bytes of it.
template <class Kernel, int kThreads, int kBlocksPerMultiprocessor = 1>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    run_kernel(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  DeviceBlock<typename Kernel::Shared> block(shared);
  kernel(block);
}

}  // namespace nanhunt::kernels::cuda
