// SPDX-License-Identifier: Apache-2.0
// Views, tables of tensors, work items, block orders and indices beyond 2^32 of the device's tensor_stats, on the CPU.
#include <sys/mman.h>

#include <gmock/gmock.h>

#include <random>

#include "tests/kernels/device_stats_support.h"

namespace nanhunt {
namespace {

using kernels::DeviceStatsView;
using kernels::cuda::make_entry;
using kernels::cuda::TensorEntry;
using kernels::cuda::StatsTable;
using testing_support::agree;
using testing_support::device_agrees;
using testing_support::EmulatedStats;
using testing_support::in_order;
using testing_support::items_of;
using testing_support::kFloats;
using testing_support::kDeviceLevels;
using testing_support::table_of;
using testing_support::OwnedTensor;

using Dims = std::vector<std::int64_t>;

OwnedTensor random_tensor(DType dtype, std::size_t count, std::uint64_t seed) {
  OwnedTensor tensor(dtype, count);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t die = random() % 1000;
    const double odd = is_floating(dtype) ? NAN : 5.0;
    tensor.set(i, die == 0 ? odd : die < 20 ? 0.0 : std::normal_distribution<double>()(random));
  }
  return tensor;
}

TEST(DeviceStatsViews, strided_reversed_and_permuted_views_count_as_on_the_cpu) {
  struct Case {
    Dims sizes, strides;
    std::int64_t offset;
  };
  const Case cases[] = {
      {{100, 150}, {1, 100}, 0},          // transposed: no gaps in memory, another logical order
      {{50, 60}, {150, 3}, 7},            // every third column
      {{30, 40, 10}, {400, 10, 1}, 0},    // contiguous, as three dimensions
      {{30, 20, 10}, {400, 10, 1}, 101},  // rows left out, off every alignment
      {{8, 5, 33}, {1000, 100, 1}, 3},
      {{10, 1, 64}, {640, 999, 1}, 5},    // the stride of a single element does not matter
      {{1500}, {-1}, 1999},               // reversed
      {{40, 50}, {-50, -1}, 1999},        // reversed, and joins into one
      {{7, 11, 13}, {-1300, 90, -7}, 10000},
      {{4, 16, 16, 8}, {2048, 16, 1, 256}, 0},  // channels last
      {{5, 40, 3, 50}, {0, 50, 0, 1}, 11},      // broadcast twice
      {{16, 3}, {1, 0}, 2},
      {{}, {}, 42},  // a scalar
      {{1, 1}, {5, 5}, 3},
      {{3, 0, 2}, {1, 1, 1}, 0},
      {{1000, 3}, {1, 1}, 0},  // overlapping
  };
  for (const DType dtype : kFloats) {
    OwnedTensor tensor = random_tensor(dtype, 15000, 17);
    for (const Case& c : cases) {
      const TensorView view{tensor.at(static_cast<std::size_t>(c.offset)), dtype, c.sizes, c.strides};
      for (const StatsLevel level : kDeviceLevels) {
        ASSERT_TRUE(device_agrees(view, level)) << dtype_name(dtype) << " " << testing::PrintToString(c.sizes)
                                                << testing::PrintToString(c.strides) << " level " << int(level);
      }
    }
  }
}

TEST(DeviceStatsViews, a_view_without_gaps_is_walked_as_one_piece_of_memory) {
  OwnedTensor tensor(DType::kF32, std::size_t{2048 * 4});
  std::int64_t repeats = 0;
  const Dims sizes = {4, 16, 16, 8};
  const Dims strides = {2048, 16, 1, 256};
  const auto permuted = kernels::plan_device_view({tensor.at(0), DType::kF32, sizes, strides}, repeats);
  ASSERT_TRUE(permuted.is_ok());
  EXPECT_TRUE(permuted->gapless);
  EXPECT_EQ(permuted->dims, 3);

  const Dims reversed = {-1};
  const Dims length = {100};
  const auto backwards = kernels::plan_device_view({tensor.at(99), DType::kF32, length, reversed}, repeats);
  EXPECT_TRUE(backwards->gapless);
  EXPECT_EQ(backwards->data, reinterpret_cast<std::uint64_t>(tensor.at(0)));
}

TEST(DeviceStatsViews, what_cannot_be_walked_is_refused_with_a_reason) {
  OwnedTensor tensor(DType::kF16, std::size_t{1});
  std::int64_t repeats = 0;
  const Dims sizes(17, 2);
  Dims strides;
  for (int d = 17; d-- > 0;) strides.push_back(std::int64_t{1} << 2 * d);
  const auto many = kernels::plan_device_view({tensor.at(0), DType::kF16, sizes, strides}, repeats);
  EXPECT_EQ(many.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(many.status().message(), testing::HasSubstr("contiguous copy"));

  const Dims two = {2, 2};
  const Dims one = {1};
  EXPECT_FALSE(kernels::plan_device_view({tensor.at(0), DType::kF16, two, one}, repeats).is_ok());
  EXPECT_FALSE(kernels::plan_device_view({nullptr, DType::kF16, one, one}, repeats).is_ok());
  const Dims negative = {-1};
  EXPECT_FALSE(kernels::plan_device_view({tensor.at(0), DType::kF16, negative, one}, repeats).is_ok());
}

TEST(DeviceStatsItems, cover_every_vector_once_and_fit_what_counts_them) {
  constexpr std::uint64_t kVector = kernels::cuda::kVectorBytes;
  std::mt19937_64 random(6);
  for (int bits = 0; bits <= 43; ++bits) {
    for (int i = 0; i < 20; ++i) {
      const std::uint64_t bytes = (std::uint64_t{1} << bits) + (i == 0 ? 0 : random() % (std::uint64_t{1} << bits));
      const std::uint64_t items = kernels::stats_items(bytes);
      const std::uint64_t item = kernels::stats_item_bytes(bytes);
      EXPECT_LT(items, 0x7fffffffu);  // blocks of a grid
      EXPECT_EQ(item % (kVector * kernels::cuda::kStatsThreads * kernels::cuda::kStatsUnroll), 0u);
      EXPECT_LE(item, kernels::kItemMaxBytes);  // a thread's counts stay below 2^32 however they are added up
      const auto last = kernels::cuda::item_range(bytes, items - 1);
      EXPECT_LT(last.begin, last.end);
      EXPECT_EQ(last.end, (bytes + kVector - 1) / kVector);
      EXPECT_EQ(kernels::cuda::item_range(bytes, 0).begin, 0u);
      if (items > 1) {
        EXPECT_EQ(kernels::cuda::item_range(bytes, items - 2).end, last.begin);
      }
    }
  }
  EXPECT_EQ(kernels::stats_items(0), 1u);  // an empty tensor has a record too
}

TEST(DeviceStatsItems, sums_do_not_depend_on_the_order_of_blocks_and_nothing_is_left_behind) {
  for (const DType dtype : kFloats) {
    OwnedTensor tensor = random_tensor(dtype, 330000 / dtype_size(dtype), 21);
    std::int64_t repeats = 1;
    const DeviceStatsView view = *kernels::plan_device_view(tensor.view(), repeats);
    const std::uint32_t items = items_of(view);
    ASSERT_GT(items, 4u);
    EmulatedStats stats(1, items);
    for (const StatsLevel level : kDeviceLevels) {
      const TensorStats want = testing_support::emulated_stats(tensor.view(), level);
      for (const std::vector<std::uint32_t>& order : testing_support::block_orders(items)) {
        for (const bool backwards : {false, true}) {
          stats.run(level, table_of(view, 0), order, backwards);
          ASSERT_TRUE(stats.stats(0) == want) << dtype_name(dtype) << " level " << int(level);
          ASSERT_TRUE(stats.is_clean());
        }
      }
    }
  }
}

TEST(DeviceStatsItems, blocks_at_the_same_time_give_the_same_bits) {
  OwnedTensor tensor = random_tensor(DType::kBF16, 300000, 22);
  std::int64_t repeats = 1;
  const DeviceStatsView view = *kernels::plan_device_view(tensor.view(), repeats);
  const TensorStats want = testing_support::emulated_stats(tensor.view(), StatsLevel::kHistogram);
  EmulatedStats stats(1, items_of(view));
  using Kernel = kernels::cuda::TensorStatsKernel<StatsLevel::kHistogram, StatsTable>;
  for (int i = 0; i < 10; ++i) {
    testing_support::run_grid_at_once(Kernel{stats.memory(), table_of(view, 0)}, items_of(view),
                                      kernels::cuda::kStatsThreads);
    ASSERT_TRUE(stats.stats(0) == want);
    ASSERT_TRUE(stats.is_clean());
  }
}

// A launch over many tensors.
struct Fleet {
  std::vector<OwnedTensor> tensors;
  std::vector<TensorEntry> entries;
  std::uint32_t items = 0;

  void add(OwnedTensor tensor) {
    tensors.push_back(std::move(tensor));
    const TensorView view = tensors.back().view();
    const auto count = static_cast<std::uint64_t>(view.numel());
    const auto tag = static_cast<std::uint32_t>(1000 + entries.size());
    // The vector of bytes moves with its owner, so this address stays.
    entries.push_back(make_entry(reinterpret_cast<std::uint64_t>(view.data), count, view.dtype, items, tag));
    items += static_cast<std::uint32_t>(kernels::stats_items(count * dtype_size(view.dtype)));
  }
};

TEST(DeviceStatsTables, tensors_of_mixed_formats_and_sizes_count_as_they_do_alone) {
  constexpr DType kAll[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64,  DType::kE4M3FN,
                            DType::kE5M2, DType::kI64, DType::kI32, DType::kU8, DType::kBool};
  Fleet fleet;
  fleet.tensors.reserve(150);
  for (std::size_t i = 0; i < 150; ++i) {
    const std::size_t counts[] = {0, 1, 300, 4096, 70000, 9};
    fleet.add(random_tensor(kAll[i % 10], counts[i % 6], i));
  }
  StatsTable table;
  table.tensors = 150;
  std::copy(fleet.entries.begin(), fleet.entries.end(), table.entries);
  for (const StatsLevel level : kDeviceLevels) {
    EmulatedStats stats(150, fleet.items);
    stats.run(level, table, testing_support::block_orders(fleet.items)[2]);
    EXPECT_TRUE(stats.is_clean());
    for (std::size_t i = 0; i < 150; ++i) {
      const TensorStats alone = testing_support::emulated_stats(fleet.tensors[i].view(), level);
      ASSERT_TRUE(stats.stats(i) == alone) << "tensor " << i << " level " << int(level);
      EXPECT_EQ(stats.record(i).tag, 1000 + i);
    }
  }
}

TEST(DeviceStatsTables, one_launch_takes_as_many_tensors_as_every_driver_passes_by_value) {
  static_assert(sizeof(kernels::cuda::StatsKernel) <= 4096);
  Fleet fleet;
  StatsTable table;
  table.tensors = kernels::kTensorsInParameters;
  for (std::size_t i = 0; i < kernels::kTensorsInParameters; ++i) {
    OwnedTensor tensor(DType::kF16, i % 50);
    for (std::size_t k = 0; k < i % 50; ++k) tensor.set(k, static_cast<double>(i));
    fleet.add(std::move(tensor));
  }
  std::copy(fleet.entries.begin(), fleet.entries.end(), table.entries);
  EmulatedStats stats(kernels::kTensorsInParameters, fleet.items);
  stats.run(StatsLevel::kSums, table, in_order(fleet.items));
  for (std::size_t i = 0; i < kernels::kTensorsInParameters; ++i) {
    ASSERT_EQ(stats.stats(i).sum, static_cast<double>(i * (i % 50))) << i;
  }
}

// Memory that is all zeros until it is written and costs nothing: a tensor larger than this machine.
class VirtualMemory {
 public:
  explicit VirtualMemory(std::size_t bytes) : bytes_(bytes) {
    at_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~VirtualMemory() {
    if (there()) ::munmap(at_, bytes_);
  }
  bool there() const { return at_ != MAP_FAILED; }
  unsigned char* at(std::size_t i) const { return static_cast<unsigned char*>(at_) + i; }

 private:
  std::size_t bytes_;
  void* at_ = nullptr;
};

TEST(DeviceStatsItems, elements_beyond_2_to_the_32_are_found_where_they_are) {
  constexpr std::uint64_t kCount = (std::uint64_t{5} << 32) + 77;  // of one byte: 20 GiB
  const VirtualMemory memory(kCount);
  if (!memory.there()) GTEST_SKIP() << "no address space for a tensor of 20 GiB here";
  const std::uint64_t nan_at = (std::uint64_t{4} << 32) + 12345;
  *memory.at(nan_at) = 0x7f;
  *memory.at(kCount - 1) = 0x38;  // 1.0, in a vector that is not whole
  DeviceStatsView view;
  view.data = reinterpret_cast<std::uint64_t>(memory.at(0));
  view.dtype = DType::kE4M3FN;
  view.count = kCount;

  // All items would take minutes here: the items of interest are run, the others stand in as what they would leave.
  const std::uint64_t item_bytes = kernels::stats_item_bytes(kCount);
  const std::uint32_t items = items_of(view);
  EmulatedStats stats(1, items);
  const auto memory_of = stats.memory();
  std::uint64_t stood_in = 0;
  for (std::uint32_t i = 0; i < items; ++i) {
    memory_of.partials[i] = kernels::cuda::empty_partial(false);
    const kernels::cuda::ItemRange range = kernels::cuda::item_range(kCount, i);
    memory_of.partials[i].zero = (range.end - range.begin) * kernels::cuda::kVectorBytes;
    memory_of.partials[i].largest = 0;
  }
  const auto nan_item = static_cast<std::uint32_t>(nan_at / item_bytes);
  stood_in = items - 2;
  *memory_of.tickets = static_cast<std::uint32_t>(stood_in);
  using Kernel = kernels::cuda::StatsKernel;
  const Kernel kernel{memory_of, table_of(view, 0)};
  testing_support::run_block(kernel, nan_item, items, kernels::cuda::kStatsThreads, false);
  testing_support::run_block(kernel, items - 1, items, kernels::cuda::kStatsThreads, false);

  const TensorStats s = stats.stats(0);
  EXPECT_TRUE(stats.is_clean());
  EXPECT_EQ(s.numel, static_cast<std::int64_t>(kCount));
  EXPECT_EQ(s.first_nonfinite, static_cast<std::int64_t>(nan_at));
  EXPECT_EQ(s.nan, 1);
  EXPECT_EQ(s.zero, static_cast<std::int64_t>(kCount) - 2);
  EXPECT_EQ(s.sum, 1.0);
  EXPECT_EQ(s.amax, 1.0);
}

TEST(DeviceStatsViews, strides_beyond_2_to_the_32_bytes_are_walked) {
  const VirtualMemory memory(std::size_t{20} << 30);
  if (!memory.there()) GTEST_SKIP() << "no address space of 20 GiB here";
  const Dims sizes = {5, 3};
  const Dims strides = {std::int64_t{1} << 30, 1};
  const float value = -2.5f;
  std::memcpy(memory.at((std::size_t{4} << 32) + 8), &value, sizeof value);
  const float infinity = INFINITY;
  std::memcpy(memory.at((std::size_t{3} << 32) + 4), &infinity, sizeof infinity);
  EXPECT_TRUE(device_agrees({memory.at(0), DType::kF32, sizes, strides}, StatsLevel::kHistogram));
}

}  // namespace
}  // namespace nanhunt
