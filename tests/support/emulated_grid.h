// SPDX-License-Identifier: Apache-2.0
// Runs a kernel written for kernels/portable/block.h on the CPU: blocks in any order or at the same time in threads of
// their own, the threads of a block in lock step by phases, in either order. What must not matter on a GPU can be
// varied here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "kernels/portable/block.h"

namespace nanhunt::testing_support {

template <class Shared>
class EmulatedBlock {
 public:
  // As on the device, registers hold garbage until they are written.
  template <class T>
  class Registers {
   public:
    T& of(const EmulatedBlock& block, std::uint32_t thread) {
      if (values_.empty()) {
        static_assert(std::is_trivially_copyable_v<T>);
        values_.resize(block.threads_);
        std::memset(static_cast<void*>(values_.data()), 0xa5, values_.size() * sizeof(T));
      }
      return values_[thread];
    }

   private:
    std::vector<T> values_;
  };

  EmulatedBlock(Shared& shared, std::uint32_t index, std::uint32_t count, std::uint32_t threads, bool backwards)
      : shared_(shared), index_(index), count_(count), threads_(threads), backwards_(backwards) {}

  std::uint32_t index() const { return index_; }
  std::uint32_t count() const { return count_; }
  Shared& shared() { return shared_; }

  template <class Work>
  void phase(Work work) {
    for (std::uint32_t i = 0; i < threads_; ++i) work(thread(i));
  }
  template <class T, class Work>
  void phase(Registers<T>& registers, Work work) {
    for (std::uint32_t i = 0; i < threads_; ++i) {
      const kernels::cuda::Thread mine = thread(i);
      work(mine, registers.of(*this, mine.index));
    }
  }
  template <class T, class U, class Work>
  void phase(Registers<T>& registers, Registers<U>& others, Work work) {
    for (std::uint32_t i = 0; i < threads_; ++i) {
      const kernels::cuda::Thread mine = thread(i);
      work(mine, registers.of(*this, mine.index), others.of(*this, mine.index));
    }
  }
  template <class T, class Fold>
  void fold_warps(Registers<T>& registers, Fold fold) {
    constexpr std::uint32_t kLanes = kernels::cuda::kWarpLanes;
    for (std::uint32_t warp = 0; warp < threads_; warp += kLanes) {
      for (std::uint32_t width = kLanes / 2; width > 0; width /= 2) {
        for (std::uint32_t lane = 0; lane < width; ++lane) {
          fold(registers.of(*this, warp + lane), static_cast<const T&>(registers.of(*this, warp + lane + width)));
        }
      }
    }
  }

 private:
  kernels::cuda::Thread thread(std::uint32_t i) const {
    return {backwards_ ? threads_ - 1 - i : i, threads_, index_, count_};
  }

  Shared& shared_;
  std::uint32_t index_, count_, threads_;
  bool backwards_;
};

// One block, with shared memory full of garbage at first.
template <class Kernel>
void run_block(const Kernel& kernel, std::uint32_t index, std::uint32_t count, std::uint32_t threads, bool backwards) {
  using Shared = typename Kernel::Shared;
  static_assert(std::is_trivially_copyable_v<Kernel> && std::is_trivially_default_constructible_v<Shared>);
  const auto shared = std::make_unique<Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof(Shared));
  EmulatedBlock<Shared> block(*shared, index, count, threads, backwards);
  kernel(block);
}

// One block after the other, as listed.
template <class Kernel>
void run_grid(const Kernel& kernel, const std::vector<std::uint32_t>& order, std::uint32_t threads,
              bool backwards = false) {
  const auto count = static_cast<std::uint32_t>(order.size());
  for (const std::uint32_t index : order) run_block(kernel, index, count, threads, backwards);
}

// Blocks at the same time, in `workers` threads: ThreadSanitizer sees what they share.
template <class Kernel>
void run_grid_at_once(const Kernel& kernel, std::uint32_t blocks, std::uint32_t threads, unsigned workers = 4) {
  std::atomic<std::uint32_t> next{0};
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < workers; ++i) {
    pool.emplace_back([&] {
      for (std::uint32_t index = next++; index < blocks; index = next++) {
        run_block(kernel, index, blocks, threads, false);
      }
    });
  }
  for (std::thread& worker : pool) worker.join();
}

inline std::vector<std::uint32_t> in_order(std::uint32_t blocks) {
  std::vector<std::uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Forwards, backwards, and `shuffles` random orders, the same each time.
inline std::vector<std::vector<std::uint32_t>> block_orders(std::uint32_t blocks, int shuffles = 3) {
  std::vector<std::vector<std::uint32_t>> orders{in_order(blocks), in_order(blocks)};
  std::reverse(orders[1].begin(), orders[1].end());
  std::mt19937 random(blocks);
  for (int i = 0; i < shuffles; ++i) {
    orders.push_back(orders[0]);
    std::shuffle(orders.back().begin(), orders.back().end(), random);
  }
  return orders;
}

// Runs it in every one of these orders, with threads both ways. `after` looks at the outcome.
template <class Kernel, class After>
void run_in_all_orders(const Kernel& kernel, std::uint32_t blocks, std::uint32_t threads, After after) {
  for (const std::vector<std::uint32_t>& order : block_orders(blocks)) {
    for (const bool backwards : {false, true}) {
      run_grid(kernel, order, threads, backwards);
      after();
    }
  }
}

}  // namespace nanhunt::testing_support
