// SPDX-License-Identifier: Apache-2.0
// Strided, reversed, broadcast and huge views, and merging of parts.
#include <cmath>
#include <random>

#include "tests/kernels/stats_support.h"

namespace nanhunt {
namespace {

using testing_support::kFloats;
using testing_support::OwnedTensor;

using Dims = std::vector<std::int64_t>;

// The same elements in logical order, packed.
OwnedTensor packed_copy(const TensorView& view) {
  OwnedTensor copy(view.dtype, static_cast<std::size_t>(view.numel()));
  const std::size_t size = dtype_size(view.dtype);
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (std::size_t d = view.sizes.size(); d-- > 0;) {
      offset += rest % view.sizes[d] * view.strides[d];
      rest /= view.sizes[d];
    }
    std::memcpy(copy.at(static_cast<std::size_t>(i)),
                static_cast<const char*>(view.data) + offset * static_cast<std::int64_t>(size), size);
  }
  return copy;
}

OwnedTensor random_tensor(DType dtype, std::size_t count, std::uint64_t seed) {
  OwnedTensor tensor(dtype, count);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t die = random() % 1000;
    tensor.set(i, die == 0 ? NAN : die < 20 ? 0.0 : std::normal_distribution<double>()(random));
  }
  return tensor;
}

TEST(TensorStatsViews, a_strided_view_equals_its_packed_copy_in_every_field) {
  struct Case {
    Dims sizes, strides;
    std::int64_t offset;
  };
  const Case cases[] = {
      {{100, 200}, {1, 100}, 0},          // transposed
      {{50, 60}, {200, 3}, 7},            // every third column
      {{30, 40, 10}, {400, 10, 1}, 0},    // contiguous, as three dimensions
      {{30, 20, 10}, {400, 10, 1}, 100},  // rows left out
      {{10, 1, 64}, {640, 999, 1}, 5},    // the stride of a single element does not matter
      {{2000}, {-1}, 1999},               // reversed
      {{40, 50}, {-50, -1}, 1999},        // reversed, and joins into one
      {{7, 11, 13}, {-1300, 90, -7}, 10000},
      {{}, {}, 42},  // a scalar
      {{1, 1}, {5, 5}, 3},
  };
  for (const DType dtype : kFloats) {
    OwnedTensor tensor = random_tensor(dtype, 20000, 17);
    for (const Case& c : cases) {
      const TensorView view{tensor.at(static_cast<std::size_t>(c.offset)), dtype, c.sizes, c.strides};
      OwnedTensor copy = packed_copy(view);
      for (const StatsLevel level : testing_support::kLevels) {
        EXPECT_TRUE(compute_stats(view, level) == compute_stats(copy.view(), level))
            << dtype_name(dtype) << " " << testing::PrintToString(c.sizes) << testing::PrintToString(c.strides);
      }
    }
  }
}

TEST(TensorStatsViews, a_large_strided_view_crosses_blocks) {
  OwnedTensor tensor = random_tensor(DType::kF32, 300000, 19);
  const Dims sizes = {3, 99999};
  const Dims strides = {1, 3};
  const TensorView view{tensor.at(0), DType::kF32, sizes, strides};
  OwnedTensor copy = packed_copy(view);
  EXPECT_TRUE(compute_stats(view, StatsLevel::kHistogram) == compute_stats(copy.view(), StatsLevel::kHistogram));
}

TEST(TensorStatsViews, a_broadcast_view_counts_every_logical_element) {
  for (const DType dtype : kFloats) {
    OwnedTensor tensor = random_tensor(dtype, 2000, 23);
    const Dims sizes = {5, 40, 3, 50};
    const Dims strides = {0, 50, 0, 1};
    const TensorView view{tensor.at(0), dtype, sizes, strides};
    OwnedTensor copy = packed_copy(view);
    const TensorStats got = compute_stats(view, StatsLevel::kHistogram);
    TensorStats want = compute_stats(copy.view(), StatsLevel::kHistogram);
    EXPECT_NEAR(got.sum, want.sum, 1e-12 * want.sum_sq);
    EXPECT_NEAR(got.sum_sq, want.sum_sq, 1e-12 * want.sum_sq);
    want.sum = got.sum;
    want.sum_sq = got.sum_sq;
    EXPECT_TRUE(got == want) << dtype_name(dtype) << " first " << got.first_nonfinite << " / " << want.first_nonfinite;
  }
}

TEST(TensorStatsViews, a_broadcast_of_2_to_the_40_elements_is_counted_right_and_at_once) {
  OwnedTensor tensor(DType::kF16, {1.0, 0.0, -3.0, NAN});
  const Dims sizes = {std::int64_t{1} << 19, 4, std::int64_t{1} << 19};
  const Dims strides = {0, 1, 0};
  const TensorStats s = compute_stats({tensor.at(0), DType::kF16, sizes, strides}, StatsLevel::kHistogram);
  const std::int64_t repeats = std::int64_t{1} << 38;
  EXPECT_EQ(s.numel, 4 * repeats);
  EXPECT_EQ(s.zero, repeats);
  EXPECT_EQ(s.nan, repeats);
  EXPECT_EQ(s.first_nonfinite, 3 * (std::int64_t{1} << 19));
  EXPECT_EQ(s.sum, -2 * 0x1p38);
  EXPECT_EQ(s.sum_sq, 10 * 0x1p38);
  EXPECT_EQ(s.histogram, (std::vector<std::int64_t>{repeats, repeats}));
}

TEST(TensorStatsViews, a_broadcast_integer_view_counts_too) {
  OwnedTensor tensor(DType::kI32, {0, 7});
  const Dims sizes = {std::int64_t{1} << 33, 2};
  const Dims strides = {0, 1};
  const TensorStats s = compute_stats({tensor.at(0), DType::kI32, sizes, strides}, StatsLevel::kSums);
  EXPECT_EQ(s.numel, std::int64_t{1} << 34);
  EXPECT_EQ(s.zero, std::int64_t{1} << 33);
  EXPECT_EQ(s.sum, 7 * 0x1p33);
}

TEST(TensorStatsViews, a_size_of_zero_anywhere_makes_it_empty) {
  const Dims sizes = {4, 0, 3};
  const Dims strides = {0, 3, -1};
  for (int i = 0; i < kDTypeCount; ++i) {
    const TensorStats s = compute_stats({nullptr, static_cast<DType>(i), sizes, strides}, StatsLevel::kHistogram);
    EXPECT_EQ(s.numel, 0);
    EXPECT_FALSE(s.any_nonfinite);
  }
}

TEST(TensorStatsViews, merged_parts_equal_the_whole) {
  for (const DType dtype : kFloats) {
    OwnedTensor tensor = random_tensor(dtype, 50000, 29);
    for (const StatsLevel level : testing_support::kLevels) {
      TensorStats whole = compute_stats(tensor.view(), level);
      for (const std::size_t cut : {0u, 1u, 16384u, 20001u, 50000u}) {
        const Dims left_size = {static_cast<std::int64_t>(cut)};
        const Dims right_size = {static_cast<std::int64_t>(50000 - cut)};
        const Dims strides = {1};
        TensorStats merged = compute_stats({tensor.at(0), dtype, left_size, strides}, level);
        merge(merged, compute_stats({tensor.at(0) + cut * dtype_size(dtype), dtype, right_size, strides}, level));
        EXPECT_NEAR(merged.sum, whole.sum, 1e-12 * whole.sum_sq);
        EXPECT_NEAR(merged.sum_sq, whole.sum_sq, 1e-12 * whole.sum_sq);
        merged.sum = whole.sum;
        merged.sum_sq = whole.sum_sq;
        EXPECT_TRUE(merged == whole) << dtype_name(dtype) << " cut at " << cut;
      }
    }
  }
}

}  // namespace
}  // namespace nanhunt
