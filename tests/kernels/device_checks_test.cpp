// SPDX-License-Identifier: Apache-2.0
// Checks of contents by the device's kernels, run on the CPU: the checksums of the CPU bit for bit, and what was
// written behind everybody's back is found and read anew.
#include "kernels/device_checks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>

#include "kernels/cpu/checksum.h"
#include "kernels/portable/checksum_stats_kernel.h"
#include "kernels/device_readings.h"
#include "tests/kernels/stats_agree.h"
#include "tests/support/emulated_device.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::kernels {
namespace {

using namespace cuda;
using testing_support::EmulatedDevice;
using testing_support::run_grid;

std::vector<unsigned char> noise(std::size_t bytes) {
  std::mt19937_64 random(11);
  std::vector<unsigned char> out(bytes);
  for (unsigned char& byte : out) byte = static_cast<unsigned char>(random());
  return out;
}

// The memory of launches, as a port has it.
struct Memory {
  std::vector<std::uint64_t> sums = std::vector<std::uint64_t>(kChecksInParameters);
  std::vector<std::uint32_t> tickets = std::vector<std::uint32_t>(kChecksInParameters);
  std::vector<std::uint64_t> references = std::vector<std::uint64_t>(16);
  std::vector<std::uint32_t> gates = std::vector<std::uint32_t>(16);
  std::vector<DeviceChecks> checks = std::vector<DeviceChecks>(kChecksInParameters / kChecksInRecord);

  std::vector<StatsPartial> partials = std::vector<StatsPartial>(64);

  ChecksumMemory device() { return {sums.data(), tickets.data(), references.data(), gates.data(), checks.data()}; }
  ChecksumStatsKernel look(std::span<const ChecksumStatsTensor> tensors, std::uint32_t& items) {
    ChecksumStatsCall call;
    call.memory = {device(), partials.data(), nullptr, nullptr};
    items = fill_checksum_stats(tensors, call.table);
    return {call};
  }
  bool is_clean() const {
    return std::ranges::all_of(sums, [](auto x) { return x == 0; }) &&
           std::ranges::all_of(tickets, [](auto x) { return x == 0; });
  }
};

ChecksumStatsTensor bytes_at(const unsigned char* data, std::size_t bytes, std::uint32_t reference = 0) {
  return {{data, static_cast<std::int64_t>(bytes), DType::kU8, reference}, kNoSlot};
}

TEST(DeviceChecks, are_the_checksums_of_the_cpu_at_every_length_and_alignment_and_in_every_order) {
  const std::vector<unsigned char> data = noise(140'000);
  Memory memory;
  for (const std::size_t bytes :
       {0u, 1u, 7u, 8u, 63u, 64u, 65u, 4095u, 32767u, 32768u, 32769u, 65536u, 65600u, 131'073u}) {
    for (const std::size_t shift : {0u, 1u, 2u, 4u}) {
      const ChecksumStatsTensor tensors[] = {bytes_at(data.data() + shift, bytes), bytes_at(data.data(), 100)};
      std::uint32_t items = 0;
      const auto kernel = memory.look(tensors, items);
      testing_support::run_in_all_orders(kernel, items, kStatsThreads, [&] {
        ASSERT_EQ(memory.checks[0].checksum[0], checksum_bytes(data.data() + shift, bytes)) << bytes << " at " << shift;
        ASSERT_EQ(memory.checks[0].checksum[1], checksum_bytes(data.data(), 100));
        ASSERT_TRUE(memory.is_clean());
        memory.checks[0] = {};
      });
    }
  }
}

TEST(DeviceChecks, of_views_are_the_checksums_of_the_cpu) {
  const std::vector<unsigned char> data = noise(400'000);
  struct Case {
    DType dtype;
    std::vector<std::int64_t> sizes, strides;
    std::size_t start;
  };
  const Case cases[] = {
      {DType::kF32, {5, 7}, {7, 1}, 0},           {DType::kF32, {7, 5}, {1, 7}, 0},
      {DType::kF16, {200, 100}, {151, 1}, 2},     {DType::kBF16, {100, 3, 50}, {1, 5001, 100}, 0},
      {DType::kF64, {30, 40}, {-80, 2}, 30'000},  {DType::kF32, {4, 1000, 9}, {0, 9, 1}, 0},
      {DType::kU8, {3, 33'000}, {50'000, 1}, 1},  {DType::kF32, {0, 3}, {3, 1}, 0},
      {DType::kF16, {2, 3, 4, 5}, {700, 200, 40, 3}, 6}};
  for (const Case& c : cases) {
    const TensorView view{data.data() + c.start, c.dtype, c.sizes, c.strides};
    const Result<CheckedView> planned = plan_check(view);
    ASSERT_TRUE(planned);
    const bool dense = c.sizes[0] == 7;  // a transposed block is taken as it lies
    const std::uint64_t expected =
        dense ? checksum_bytes(data.data(), 35 * sizeof(float)) : checksum_elements(view);
    Memory memory;
    const std::uint32_t blocks = checksum_blocks(planned->count * planned->size);
    if (planned->dims > 0) {
      run_grid(ChecksumKernel{memory.device(), {*planned, 0}}, testing_support::in_order(blocks), kChecksumThreads);
    } else {
      const ChecksumStatsTensor tensor{
          {reinterpret_cast<const void*>(planned->data), static_cast<std::int64_t>(planned->count), c.dtype}, kNoSlot};
      std::uint32_t items = 0;
      const auto kernel = memory.look({&tensor, 1}, items);
      run_grid(kernel, testing_support::in_order(items), kStatsThreads);
    }
    EXPECT_EQ(memory.checks[0].checksum[0], expected) << dtype_name(c.dtype) << " of " << c.sizes[0];
  }
  const std::vector<std::int64_t> sizes(9, 2),
      strides = {1 << 9, 1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1};
  EXPECT_TRUE(plan_check({data.data(), DType::kF32, sizes, strides})) << "dimensions that join";
  const std::vector<std::int64_t> apart = {1 << 17, 1 << 15, 1 << 13, 1 << 11, 1 << 9, 1 << 7, 1 << 5, 1 << 3, 2};
  EXPECT_FALSE(plan_check({data.data(), DType::kU8, sizes, apart}));
}

TEST(DeviceChecks, differ_from_a_reference_exactly_when_a_bit_did) {
  std::vector<unsigned char> data = noise(70'000);
  Memory memory;
  const auto look = [&](std::uint32_t reference) {
    const ChecksumStatsTensor tensors[] = {bytes_at(data.data(), 70'000, reference), bytes_at(data.data(), 8)};
    std::uint32_t items = 0;
    const auto kernel = memory.look(tensors, items);
    run_grid(kernel, testing_support::in_order(items), kStatsThreads);
    EXPECT_EQ(memory.checks[0].differs[1], 1) << "without a reference nothing is known to be the same";
    EXPECT_EQ(memory.gates[3], memory.checks[0].differs[0]);
    return memory.checks[0].differs[0] != 0;
  };
  memory.references[3] = checksum_bytes(data.data(), 70'000);
  EXPECT_TRUE(look(3 | kFirstCheck)) << "what stood there belongs to something else";
  EXPECT_FALSE(look(3));
  data[40'000] ^= 0x10;
  EXPECT_TRUE(look(3));
  EXPECT_FALSE(look(3)) << "what is there now is what the next look is compared with";
  data[40'000] ^= 0x10;
  EXPECT_TRUE(look(3));
}

// Tensors of fp32 on the emulated device.
struct Rig {
  EmulatedDevice device;
  std::unique_ptr<DeviceReadings> readings;
  std::deque<std::vector<std::int64_t>> dims;
  std::vector<std::pair<void*, std::size_t>> memory;

  explicit Rig(std::size_t slots = 512) {
    std::string why;
    readings = DeviceReadings::open(device, {.tensors = slots, .references = 300}, why);
    EXPECT_NE(readings, nullptr) << why;
  }
  ~Rig() {
    for (const auto& [at, bytes] : memory) device.release(at, bytes);
  }
  TensorView add(const std::vector<float>& values) {
    void* at = device.allocate(values.size() * sizeof(float));
    memory.emplace_back(at, values.size() * sizeof(float));
    device.to_device(at, values.data(), values.size() * sizeof(float));
    dims.push_back({static_cast<std::int64_t>(values.size())});
    dims.push_back({1});
    return {at, DType::kF32, dims[dims.size() - 2], dims.back()};
  }
  void write(const TensorView& to, const std::vector<float>& values) {
    device.to_device(const_cast<void*>(to.data), values.data(), values.size() * sizeof(float));
  }
};

TEST(DeviceChecks, statistics_are_taken_of_what_differs_and_of_nothing_else) {
  Rig rig;
  const TensorView x = rig.add({1, 2}), y = rig.add({3, 4}), z = rig.add({5, 6});
  const std::vector<TensorView> tensors = {x, y, z};
  std::vector<std::optional<TensorStats>> stats(3);
  ReadingExtras extras;
  const auto look = [&](std::vector<std::uint32_t> references) {
    const std::uint64_t launches = rig.device.launches;
    const auto ticket = rig.readings->enqueue(tensors, {}, nullptr, references);
    EXPECT_EQ(rig.device.launches - launches, 1U) << "one that checks and reads";
    EXPECT_EQ(rig.readings->wait(ticket, stats, &extras), ReadingsState::kReady);
    EXPECT_EQ(extras.checks.size(), 3U);
  };
  look({1 | kFirstCheck, 2 | kFirstCheck, 0});
  for (const auto& one : stats) EXPECT_TRUE(one);
  const std::uint64_t before = extras.checks[1]->checksum;
  rig.write(y, {3, 7});
  look({1, 2, 0});
  EXPECT_FALSE(stats[0]);
  EXPECT_FALSE(extras.checks[0]->differs);
  ASSERT_TRUE(stats[1]);
  EXPECT_EQ(stats[1]->sum, 10);
  EXPECT_TRUE(extras.checks[1]->differs);
  EXPECT_NE(extras.checks[1]->checksum, before);
  const float now[] = {3, 7};
  EXPECT_EQ(extras.checks[1]->checksum, checksum_bytes(now, sizeof now));
  ASSERT_TRUE(stats[2]);
  EXPECT_EQ(stats[2]->sum, 11);
  EXPECT_EQ(rig.readings->counts().lost, 0U);
  EXPECT_EQ(rig.readings->counts().tensors, rig.readings->counts().delivered);
}

TEST(DeviceChecks, of_many_tensors_and_of_views_among_them_find_their_own) {
  Rig rig(700);
  std::vector<TensorView> tensors;
  std::vector<std::uint32_t> first, later;
  for (int i = 0; i < 250; ++i) {
    TensorView tensor = rig.add(std::vector<float>(10, static_cast<float>(i)));
    if (i % 60 == 7) {  // every other element
      rig.dims.push_back({5});
      rig.dims.push_back({2});
      tensor.sizes = rig.dims[rig.dims.size() - 2];
      tensor.strides = rig.dims.back();
    }
    tensors.push_back(tensor);
    later.push_back(static_cast<std::uint32_t>(i + 1));
    first.push_back(later.back() | kFirstCheck);
  }
  std::vector<std::optional<TensorStats>> stats(250);
  ReadingExtras extras;
  for (int round = 0; round < 5; ++round) {  // slots wrap in the middle of a launch
    if (round > 0) rig.write(tensors[static_cast<std::size_t>(round * 60 + 7 - 60)], std::vector<float>(10, -1.0f));
    const auto ticket = rig.readings->enqueue(tensors, {}, nullptr, round == 0 ? first : later);
    ASSERT_EQ(rig.readings->wait(ticket, stats, &extras), ReadingsState::kReady);
    ASSERT_EQ(extras.checks.size(), 250U);
    for (std::size_t i = 0; i < 250; ++i) {
      const bool changed = round == 0 || i == static_cast<std::size_t>(round * 60 + 7 - 60);
      ASSERT_EQ(extras.checks[i]->differs, changed) << i << " in round " << round;
      ASSERT_EQ(stats[i].has_value(), changed) << i;
      if (round > 0) continue;
      ASSERT_EQ(stats[i]->sum, static_cast<double>(i) * static_cast<double>(tensors[i].numel()));
    }
  }
  EXPECT_EQ(rig.readings->counts().lost, 0U);
}

}  // namespace
}  // namespace nanhunt::kernels
