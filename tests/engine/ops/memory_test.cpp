// SPDX-License-Identifier: Apache-2.0
// Memory of storages is used again; nobody can tell from a storage.
#include "src/engine/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {
namespace {

TEST(Memory, of_an_ended_storage_is_used_again_under_a_new_generation_and_zeroed) {
  // given: a storage full of ones that ends
  constexpr std::size_t kBytes = 123457;
  const std::byte* place = nullptr;
  std::uint64_t generation = 0;
  {
    Storage first(kBytes);
    std::memset(first.data(), 0xff, kBytes);
    place = first.data();
    generation = first.generation();
  }
  // when
  Storage second(kBytes);
  // then
  EXPECT_EQ(second.data(), place);
  EXPECT_GT(second.generation(), generation);
  EXPECT_TRUE(std::all_of(second.data(), second.data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Memory, blocks_hold_what_was_asked_for_aligned_and_apart) {
  std::vector<std::pair<std::byte*, std::size_t>> taken;
  for (std::size_t bytes = 0; bytes < 70000; bytes = bytes * 9 / 8 + 1) {
    taken.emplace_back(take_memory(bytes), bytes);
    std::memset(taken.back().first, static_cast<int>(taken.size()), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().first) % kMemoryAlignment, 0U);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto [block, bytes] = taken[i];
    EXPECT_TRUE(std::all_of(block, block + bytes, [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
    give_memory_back(block, bytes);
  }
}

TEST(Memory, a_block_never_serves_a_larger_request_than_it_holds) {
  // given: one kept block of every size around a class boundary; then: a larger request gets another place
  for (std::size_t bytes : {255U, 256U, 257U, 320U, 321U, 1024U, 1025U, 4096U, 5120U, 5121U}) {
    std::byte* small = take_memory(bytes);
    give_memory_back(small, bytes);
    std::byte* large = take_memory(2 * bytes);
    EXPECT_NE(small, large) << bytes;
    give_memory_back(large, 2 * bytes);
  }
}

TEST(Memory, kept_for_later_is_bounded) {
  const std::size_t too_much = kMaxKeptBytes + 1;
  const std::size_t before = kept_memory();
  give_memory_back(take_memory(too_much), too_much);
  EXPECT_EQ(kept_memory(), before);
  give_memory_back(take_memory(3000), 3000);
  EXPECT_LE(kept_memory(), kMaxKeptBytes);
}

TEST(Memory, may_end_on_another_thread_than_it_began) {
  auto storage = std::make_unique<Storage>(1000);
  std::thread([moved = std::move(storage)]() mutable { moved.reset(); }).join();
  std::byte* nothing = take_memory(0);
  EXPECT_NE(nothing, nullptr);
  give_memory_back(nothing, 0);
}

TEST(Memory, of_an_absurd_size_is_refused) { EXPECT_THROW(Storage(std::size_t{1} << 41), std::invalid_argument); }

}  // namespace
}  // namespace nanhunt::engine
