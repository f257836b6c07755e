// SPDX-License-Identifier: Apache-2.0
// The CPU's stand-in for a grid of thread blocks: it must run a right kernel right, and show up a wrong one.
#include "tests/support/emulated_grid.h"

#include <cmath>
#include <set>

namespace nanhunt::testing_support {
namespace {

using kernels::cuda::Thread;

// A sum in fp32 over the grid: partials by block, combined by the block that comes last. `in_order` is the planted
// bug's repaired twin: the wrong kernel adds blocks as they arrive.
struct SumKernel {
  struct Shared {
    float warps[32];
    std::uint32_t ticket;
  };
  const float* values;
  std::uint64_t count;
  float* partials;
  float* total;
  std::uint32_t* tickets;
  bool in_order;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Registers<float> sum;
    auto& shared = block.shared();
    block.phase(sum, [&](const Thread& thread, float& mine) {
      mine = 0;
      for (std::uint64_t i = thread.global_index(); i < count; i += thread.global_count()) mine += values[i];
    });
    block.fold_warps(sum, [](float& into, const float& from) { into += from; });
    block.phase(sum, [&](const Thread& thread, const float& mine) {
      if (thread.lane() == 0) shared.warps[thread.warp()] = mine;
    });
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      float whole = 0;
      for (std::uint32_t warp = 0; warp < thread.count / kernels::cuda::kWarpLanes; ++warp) whole += shared.warps[warp];
      partials[thread.block] = whole;
      if (!in_order) *total += whole;
      shared.ticket = kernels::cuda::draw_ticket(tickets, thread.blocks);
    });
    if (!in_order || shared.ticket != block.count() - 1) return;
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      float whole = 0;
      for (std::uint32_t i = 0; i < thread.blocks; ++i) whole += partials[i];
      *total = whole;
    });
  }
};

std::set<float> totals_over_all_orders(bool in_order) {
  std::vector<float> values(5000);
  std::mt19937 random(1);
  for (float& value : values) {
    value = std::ldexp((static_cast<float>(random() % 1000) - 499.5f) / 3, static_cast<int>(random() % 20));
  }
  std::vector<float> partials(7);
  float total = 0;
  std::uint32_t tickets = 0;
  std::set<float> seen;
  const SumKernel kernel{values.data(), values.size(), partials.data(), &total, &tickets, in_order};
  run_in_all_orders(kernel, 7, 64, [&] {
    seen.insert(total);
    total = 0;
    EXPECT_EQ(tickets, 0u);  // ready for the next launch
  });
  return seen;
}

TEST(EmulatedGrid, shows_up_a_sum_that_depends_on_the_order_of_blocks) {
  EXPECT_GT(totals_over_all_orders(false).size(), 1u);
}

TEST(EmulatedGrid, is_silent_on_its_twin_that_combines_in_fixed_order) {
  EXPECT_EQ(totals_over_all_orders(true).size(), 1u);
}

TEST(EmulatedGrid, adds_every_element_once_whatever_the_shape_of_the_grid) {
  for (const std::uint32_t threads : {32u, 64u, 256u, 1024u}) {
    for (const std::uint32_t blocks : {1u, 2u, 5u}) {
      for (const std::size_t count : {0u, 1u, 31u, 33u, 1000u, 4097u}) {
        std::vector<float> values(count, 1.0f);
        std::vector<float> partials(blocks);
        float total = -1;
        std::uint32_t tickets = 0;
        run_grid(SumKernel{values.data(), count, partials.data(), &total, &tickets, true}, in_order(blocks), threads);
        EXPECT_EQ(total, static_cast<float>(count)) << blocks << " blocks of " << threads;
      }
    }
  }
}

TEST(EmulatedGrid, blocks_in_threads_of_their_own_give_the_same) {
  std::vector<float> values(3000, 0.1f);
  std::vector<float> partials(9);
  float one_by_one = 0;
  float at_once = 0;
  std::uint32_t tickets = 0;
  run_grid(SumKernel{values.data(), values.size(), partials.data(), &one_by_one, &tickets, true}, in_order(9), 32);
  for (int i = 0; i < 20; ++i) {
    run_grid_at_once(SumKernel{values.data(), values.size(), partials.data(), &at_once, &tickets, true}, 9, 32);
    EXPECT_EQ(at_once, one_by_one);
  }
}

// Writes a place that the next thread reads in the same phase: a race on a GPU.
struct RaceKernel {
  struct Shared {
    int places[64];
  };
  int* seen;
  bool separate;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    auto& shared = block.shared();
    block.phase([&](const Thread& thread) {
      shared.places[thread.index] = static_cast<int>(thread.index);
      if (!separate && thread.index > 0) seen[thread.index] = shared.places[thread.index - 1];
    });
    if (!separate) return;
    block.phase([&](const Thread& thread) {
      if (thread.index > 0) seen[thread.index] = shared.places[thread.index - 1];
    });
  }
};

TEST(EmulatedGrid, shows_up_a_missing_barrier_and_is_silent_on_the_twin_that_has_it) {
  for (const bool separate : {false, true}) {
    std::set<std::vector<int>> outcomes;
    std::vector<int> seen(64);
    run_in_all_orders(RaceKernel{seen.data(), separate}, 1, 64, [&] { outcomes.insert(seen); });
    EXPECT_EQ(outcomes.size(), separate ? 1u : 2u);
  }
}

TEST(EmulatedGrid, tickets_are_drawn_once_each_and_start_over) {
  std::uint32_t counter = 0;
  for (int launch = 0; launch < 3; ++launch) {
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(kernels::cuda::draw_ticket(&counter, 5), i);
  }
  EXPECT_EQ(kernels::cuda::draw_ticket(&counter, 1), 0u);
  EXPECT_EQ(counter, 0u);
}

}  // namespace
}  // namespace nanhunt::testing_support
