// SPDX-License-Identifier: Apache-2.0
// The caching allocator against a source that remembers what it was asked.
#include "kernels/device_allocator.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <stdexcept>

namespace nanhunt::kernels {
namespace {

using ::testing::HasSubstr;

class FakeSource : public DeviceAllocator::Source {
 public:
  std::size_t capacity = ~std::size_t{0};
  std::set<void*> given;
  std::map<void*, std::size_t> sizes;
  std::size_t held = 0;
  std::set<DeviceAllocator::Event> recorded, finished, forgotten;
  std::vector<DeviceAllocator::Stream> recorded_on;
  bool refuses_events = false;
  int asked = 0;  // whether an event is done

  void* allocate(std::size_t bytes) override {
    if (held + bytes > capacity) return nullptr;
    void* memory = std::malloc(1);
    given.insert(memory);
    sizes[memory] = bytes;
    held += bytes;
    return memory;
  }
  void free(void* memory) noexcept override {
    EXPECT_EQ(given.erase(memory), 1U) << "freed twice, or never given";
    held -= sizes[memory];
    std::free(memory);
  }
  DeviceAllocator::Event record(DeviceAllocator::Stream stream) override {
    if (refuses_events) throw std::runtime_error("no events");
    recorded_on.push_back(stream);
    recorded.insert(recorded.size() + 1);
    return recorded.size();
  }
  bool done(DeviceAllocator::Event event) noexcept override {
    ++asked;
    return finished.count(event) != 0;
  }
  void forget(DeviceAllocator::Event event) noexcept override { forgotten.insert(event); }
};

TEST(DeviceAllocator, rounds_to_classes_that_waste_at_most_an_eighth) {
  EXPECT_EQ(DeviceAllocator::block_bytes(0), 512U);
  EXPECT_EQ(DeviceAllocator::block_bytes(1), 512U);
  EXPECT_EQ(DeviceAllocator::block_bytes(513), 1024U);
  std::size_t before = 0;
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 34); bytes += bytes / 7 + 1) {
    const std::size_t block = DeviceAllocator::block_bytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_EQ(block % 512, 0U);
    EXPECT_GE(block, before);
    if (bytes > 4096) {
      EXPECT_LE(static_cast<double>(block), static_cast<double>(bytes) * 1.125 + 512);
    }
    EXPECT_EQ(DeviceAllocator::block_bytes(block), block);
    before = block;
  }
}

TEST(DeviceAllocator, hands_out_again_what_came_back_without_asking) {
  FakeSource source;
  DeviceAllocator allocator(source);
  void* first = allocator.allocate(1000, 1);
  EXPECT_EQ(allocator.used(), 1024U);
  allocator.release(first);
  EXPECT_EQ(allocator.used(), 0U);
  EXPECT_EQ(allocator.cached(), 1024U);
  EXPECT_EQ(allocator.allocate(900, 1), first);
  EXPECT_EQ(allocator.cached(), 0U);
  EXPECT_EQ(allocator.source_calls(), 1U);
}

TEST(DeviceAllocator, keeps_the_memory_of_streams_apart) {
  FakeSource source;
  DeviceAllocator allocator(source);
  void* first = allocator.allocate(1000, 1);
  allocator.release(first);
  void* second = allocator.allocate(1000, 2);
  EXPECT_NE(second, first);
}

TEST(DeviceAllocator, lets_what_another_stream_works_with_wait_for_it) {
  FakeSource source;
  DeviceAllocator allocator(source);
  void* memory = allocator.allocate(1000, 1);
  allocator.also_used_on(memory, 2);
  allocator.also_used_on(memory, 2);
  allocator.also_used_on(memory, 1);
  allocator.release(memory);
  EXPECT_EQ(source.recorded_on, (std::vector<DeviceAllocator::Stream>{2}));
  void* other = allocator.allocate(1000, 1);
  EXPECT_NE(other, memory);
  source.finished = source.recorded;
  EXPECT_EQ(allocator.allocate(1000, 1), memory);
  EXPECT_EQ(source.forgotten, source.recorded);
}

TEST(DeviceAllocator, frees_what_it_cannot_wait_for) {
  FakeSource source;
  DeviceAllocator allocator(source);
  void* memory = allocator.allocate(1000, 1);
  allocator.also_used_on(memory, 2);
  source.refuses_events = true;
  allocator.release(memory);
  EXPECT_TRUE(source.given.empty());
}

TEST(DeviceAllocator, gives_its_cache_up_before_it_gives_up) {
  FakeSource source;
  source.capacity = 4096;
  DeviceAllocator allocator(source);
  allocator.release(allocator.allocate(4096, 1));
  void* other_size = allocator.allocate(3000, 1);
  EXPECT_NE(other_size, nullptr);
  EXPECT_EQ(allocator.cached(), 0U);
  try {
    allocator.allocate(2 << 20, 1);
    ADD_FAILURE() << "there was no more";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("out of memory: 2 MiB were asked for, this run holds 1 MiB. Use a smaller batch"));
  }
}

TEST(DeviceAllocator, gives_everything_back_in_the_end) {
  FakeSource source;
  {
    DeviceAllocator allocator(source);
    void* kept = allocator.allocate(10, 1);
    static_cast<void>(kept);
    allocator.release(allocator.allocate(10, 1));
    void* waiting = allocator.allocate(10, 1);
    allocator.also_used_on(waiting, 2);
    allocator.release(waiting);
  }
  EXPECT_TRUE(source.given.empty());
  EXPECT_EQ(source.held, 0U);
}

TEST(DeviceAllocator, survives_a_run_of_random_work) {
  FakeSource source;
  DeviceAllocator allocator(source);
  std::vector<void*> held;
  std::uint64_t state = 1;
  const auto next = [&state] { return (state = state * 6364136223846793005U + 1442695040888963407U) >> 33; };
  for (int i = 0; i < 20000; ++i) {
    if (held.empty() || next() % 3 != 0) {
      void* memory = allocator.allocate(1 + next() % 100000, 1 + next() % 2);
      EXPECT_EQ(std::count(held.begin(), held.end(), memory), 0);
      if (next() % 4 == 0) allocator.also_used_on(memory, 3);
      held.push_back(memory);
      if (held.size() > 60) {
        allocator.release(held.front());
        held.erase(held.begin());
      }
    } else {
      const std::size_t at = next() % held.size();
      allocator.release(held[at]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (i % 100 == 0) source.finished = source.recorded;
  }
  EXPECT_LT(allocator.source_calls(), 4000U);
}

}  // namespace
}  // namespace nanhunt::kernels
