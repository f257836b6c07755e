// SPDX-License-Identifier: Apache-2.0
// Looks at contents by the device's kernel, run on the CPU: from one reading the checksum of the CPU and the record of
// tensor_stats on the device, every bit of both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/checksum.h"
#include "kernels/portable/checksum_stats_kernel.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::kernels::cuda {
namespace {

using testing_support::in_order;
using testing_support::run_grid;

constexpr DType kAll[] = {DType::kF16,  DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN,
                          DType::kE5M2, DType::kI64,  DType::kI32, DType::kU8,  DType::kBool};

// Of 16-bit words with NaNs, infinities, subnormals and zeros among them, whatever the format.
std::vector<unsigned char> noise(std::size_t bytes) {
  std::mt19937_64 random(7);
  std::vector<unsigned char> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::uint64_t word = random();
    out[i] = word % 7 == 0 ? static_cast<unsigned char>(word % 14 == 0 ? 0x00 : 0xff)
                           : static_cast<unsigned char>(word >> 32);
  }
  return out;
}

// The memory of launches, as a port has it.
struct Memory {
  std::vector<std::uint64_t> sums = std::vector<std::uint64_t>(kChecksInParameters);
  std::vector<std::uint32_t> tickets = std::vector<std::uint32_t>(kChecksInParameters);
  std::vector<std::uint64_t> references = std::vector<std::uint64_t>(16);
  std::vector<std::uint32_t> gates = std::vector<std::uint32_t>(16), known = std::vector<std::uint32_t>(16);
  std::vector<DeviceChecks> checks = std::vector<DeviceChecks>(kChecksInParameters / kChecksInRecord);
  std::vector<StatsPartial> partials = std::vector<StatsPartial>(64);
  std::vector<DeviceStatsRecord> records = std::vector<DeviceStatsRecord>(8);

  ChecksumStatsMemory device() {
    return {{sums.data(), tickets.data(), references.data(), gates.data(), checks.data()},
            partials.data(), records.data(), known.data()};
  }
  bool is_clean() const {
    return std::ranges::all_of(sums, [](auto x) { return x == 0; }) &&
           std::ranges::all_of(tickets, [](auto x) { return x == 0; });
  }
};

DeviceTensor tensor_at(const unsigned char* data, DType dtype, std::size_t count, std::uint32_t reference = 0) {
  return {data, static_cast<std::int64_t>(count), dtype, reference};
}

DeviceStatsRecord read_on_its_own(const DeviceTensor& tensor) {
  std::vector<StatsPartial> partials(64);
  std::vector<std::uint32_t> tickets(1);
  DeviceStatsRecord record;
  StatsMemory memory;
  memory.partials = partials.data();
  memory.tickets = tickets.data();
  memory.records = &record;
  DeviceStatsView view;
  view.data = reinterpret_cast<std::uint64_t>(tensor.data);
  view.count = static_cast<std::uint64_t>(tensor.count);
  view.dtype = tensor.dtype;
  const auto items = static_cast<std::uint32_t>(stats_items(view.count * dtype_size(view.dtype)));
  StatsTable table;
  table.view = view;
  table.tag = tensor.tag & ~kFirstCheck;
  run_grid(StatsKernel{memory, table}, in_order(items), kStatsThreads);
  return record;
}

bool same_bits(const DeviceStatsRecord& a, const DeviceStatsRecord& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::uint64_t checksum_of(const DeviceTensor& tensor) {
  return checksum_bytes(tensor.data, static_cast<std::size_t>(tensor.count) * dtype_size(tensor.dtype));
}

ChecksumStatsCall look_at(Memory& memory, const std::vector<ChecksumStatsTensor>& tensors, std::uint32_t& items) {
  ChecksumStatsCall call;
  call.memory = memory.device();
  items = fill_checksum_stats(tensors, call.table);
  return call;
}
void run(const ChecksumStatsCall& call, std::uint32_t items) { run_grid(ChecksumStatsKernel{call}, in_order(items), kStatsThreads); }
template <class Check>
void run_in_all_orders(const ChecksumStatsCall& call, std::uint32_t items, Check check) {
  testing_support::run_in_all_orders(ChecksumStatsKernel{call}, items, kStatsThreads, check);
}

TEST(DeviceChecksumStats, at_new_contents_leave_the_checksum_and_the_record_of_two_readings) {
  const std::vector<unsigned char> data = noise(200'000);
  for (const DType dtype : kAll) {
    const std::size_t size = dtype_size(dtype);
    for (const std::size_t bytes :
         {0u, 8u, 24u, 56u, 64u, 120u, 4096u, 32760u, 32768u, 32776u, 65536u, 65544u, 131'080u}) {
      for (const std::size_t shift : {0u, 1u, 2u, 4u, 8u}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(bytes) + " at " + std::to_string(shift));
        const std::size_t less = size == 1 && bytes > 0 ? 3 : size == 2 && bytes > 0 ? 1 : 0;  // not whole words
        const DeviceTensor tensor = tensor_at(data.data() + shift, dtype, bytes / size - less, 5 | kFirstCheck);
        Memory memory;
        std::uint32_t items = 0;
        const ChecksumStatsCall call = look_at(memory, {{tensor, 3}}, items);
        run(call, items);
        const DeviceStatsRecord alone = read_on_its_own(tensor);
        ASSERT_TRUE(same_bits(memory.records[3], alone)) << memory.records[3].sum << " " << alone.sum;
        ASSERT_EQ(memory.checks[0].checksum[0], checksum_of(tensor));
        ASSERT_EQ(memory.checks[0].differs[0], 1);
        ASSERT_EQ(memory.references[5], checksum_of(tensor));
        const std::uint64_t infinities = alone.pos_inf + alone.neg_inf;
        ASSERT_EQ(memory.known[5], (alone.nan != 0 ? kNanBits : 0) | (infinities != 0 ? kInfBits : 0));
        ASSERT_TRUE(memory.is_clean());
      }
    }
  }
}

TEST(DeviceChecksumStats, are_the_same_in_every_order_of_blocks_and_threads_alone_or_among_others) {
  const std::vector<unsigned char> data = noise(400'000);
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64, DType::kI32}) {
    const DeviceTensor large = tensor_at(data.data() + 3, dtype, 300'000 / dtype_size(dtype));
    const DeviceTensor small = tensor_at(data.data(), dtype, 100);
    Memory memory;
    std::uint32_t items = 0;
    const ChecksumStatsCall call = look_at(memory, {{small, 1}, {large, 0}, {small, kNoSlot}}, items);
    run_in_all_orders(call, items, [&] {
      ASSERT_TRUE(same_bits(memory.records[0], read_on_its_own(large)));
      ASSERT_TRUE(same_bits(memory.records[1], read_on_its_own(small)));
      ASSERT_EQ(memory.checks[0].checksum[1], checksum_of(large));
      ASSERT_EQ(memory.checks[0].checksum[2], checksum_of(small));
      ASSERT_TRUE(memory.is_clean());
      memory.records.assign(8, {});
      memory.checks[0] = {};
    });
  }
}

TEST(DeviceChecksumStats, read_what_is_known_only_where_it_changed) {
  for (const DType dtype : kAll) {
    SCOPED_TRACE(dtype_name(dtype));
    std::vector<unsigned char> data = noise(200'000);
    for (const std::size_t bytes : {4000u, 65536u, 200'000u}) {
      const DeviceTensor tensor = tensor_at(data.data(), dtype, bytes / dtype_size(dtype), 2);
      Memory memory;
      memory.references[2] = checksum_of(tensor);
      std::uint32_t items = 0;
      const ChecksumStatsCall call = look_at(memory, {{tensor, 0}}, items);
      memory.records[0].count = 77;
      memory.known[2] = 99;
      run(call, items);
      EXPECT_EQ(memory.checks[0].differs[0], 0);
      EXPECT_EQ(memory.records[0].count, 77U) << "nothing is left of what is as it was";
      EXPECT_EQ(memory.known[2], 99U);

      data[bytes - 3] ^= 1;
      run_in_all_orders(call, items, [&] {
        ASSERT_EQ(memory.checks[0].differs[0], 1);
        ASSERT_TRUE(same_bits(memory.records[0], read_on_its_own(tensor)));
        ASSERT_EQ(memory.checks[0].checksum[0], checksum_of(tensor));
        ASSERT_TRUE(memory.is_clean());
        memory.records[0] = {};
        memory.references[2] ^= 1;
      });
    }
  }
}

TEST(DeviceChecksumStats, at_what_another_launch_reads_open_its_gate) {
  const std::vector<unsigned char> data = noise(100);
  Memory memory;
  std::uint32_t items = 0;
  const DeviceTensor tensor = tensor_at(data.data(), DType::kF32, 25, 4 | kFirstCheck);
  const ChecksumStatsCall call = look_at(memory, {{tensor, kNoSlot}}, items);
  run(call, items);
  EXPECT_EQ(memory.gates[4], 1U);
  EXPECT_EQ(memory.known[4], 0U);
  for (const DeviceStatsRecord& record : memory.records) EXPECT_EQ(record.count, 0U);
}

TEST(DeviceChecksumStats, at_formats_side_by_side_leave_the_bits_that_each_leaves_alone) {
  const std::vector<unsigned char> data = noise(200'000);
  Memory memory;
  std::vector<ChecksumStatsTensor> tensors;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kU8}) {
    tensors.push_back({tensor_at(data.data() + 8, dtype, 150'000 / dtype_size(dtype)),
                       static_cast<std::uint32_t>(tensors.size())});
  }
  std::uint32_t items = 0;
  const ChecksumStatsCall call = look_at(memory, tensors, items);
  run(call, items);
  for (const ChecksumStatsTensor& one : tensors) {
    EXPECT_TRUE(same_bits(memory.records[one.slot], read_on_its_own(one.tensor))) << dtype_name(one.tensor.dtype);
    EXPECT_EQ(memory.checks[0].checksum[one.slot], checksum_of(one.tensor));
  }
}

// Items as tensors past 128 MiB may have them: of 80 KiB, two and a half blocks of the checksum.
struct OddItems {
  struct Shared {
    ChecksumStatsShared look;
  };
  std::uint64_t data, bytes;
  std::uint64_t* checksum;

  template <class Block>
  void operator()(Block& block) const {
    const std::uint64_t begin = std::uint64_t{block.index()} * 5120, vectors = (bytes + 15) / 16;
    checksum_item(block, block.shared().look, data, bytes, {begin, lesser(begin + 5120, vectors)});
    *checksum += block.shared().look.checksum;
  }
};

TEST(DeviceChecksumStats, at_items_that_end_within_a_block_of_the_checksum_count_everything_once) {
  const std::vector<unsigned char> data = noise(500'000);
  for (const std::size_t bytes : {81'920u, 81'924u, 90'000u, 98'304u, 163'840u, 180'000u, 499'996u}) {
    for (const std::size_t shift : {0u, 4u}) {
      std::uint64_t checksum = 0;
      const auto items = static_cast<std::uint32_t>((bytes + 81'919) / 81'920);
      run_grid(OddItems{reinterpret_cast<std::uint64_t>(data.data()) + shift, bytes, &checksum}, in_order(items),
               kStatsThreads);
      EXPECT_EQ(checksum, checksum_bytes(data.data() + shift, bytes)) << bytes;
    }
  }
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
