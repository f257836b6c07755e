// SPDX-License-Identifier: Apache-2.0
// compute_stats against known answers, on every path.
#include "nanhunt/tensor_stats.h"

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "tests/kernels/stats_support.h"

namespace nanhunt {
namespace {

using kernels::compute_stats_on;
using kernels::Simd;
using testing_support::kFloats;
using testing_support::kLevels;
using testing_support::OwnedTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class TensorStatsOnPath : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!kernels::simd_supported(GetParam())) GTEST_SKIP() << "this CPU has no " << kernels::simd_name(GetParam());
  }
  TensorStats stats(OwnedTensor& tensor, StatsLevel level = StatsLevel::kHistogram) {
    return compute_stats_on(GetParam(), tensor.view(), level);
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, TensorStatsOnPath, testing::ValuesIn(kernels::kAllSimd),
                         [](const auto& path) { return std::string(kernels::simd_name(path.param)); });

TEST_P(TensorStatsOnPath, classes_are_kept_apart) {
  OwnedTensor tensor(DType::kF16, {1.0, -2.0, kNaN, kInf, -kInf, 0.0, -0.0, 0x1p-24, -kInf});
  const TensorStats s = stats(tensor);
  EXPECT_EQ(s.numel, 9);
  EXPECT_TRUE(s.any_nonfinite);
  EXPECT_EQ(s.first_nonfinite, 2);
  EXPECT_EQ(s.nan, 1);
  EXPECT_EQ(s.pos_inf, 1);
  EXPECT_EQ(s.neg_inf, 2);
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.subnormal, 1);
  EXPECT_EQ(s.amax, 2);
  EXPECT_EQ(s.amin_nonzero, 0x1p-24);
  EXPECT_EQ(s.min, -2);
  EXPECT_EQ(s.max, 1);
  EXPECT_EQ(s.sum, -1 + 0x1p-24);
  EXPECT_EQ(s.sum_sq, 5 + 0x1p-48);
  EXPECT_EQ(s.histogram_min_exponent, -24);
  EXPECT_EQ(s.histogram.size(), 26u);
  EXPECT_EQ(s.histogram.front(), 1);
  EXPECT_EQ(s.histogram[24], 1);  // 1
  EXPECT_EQ(s.histogram[25], 1);  // -2
}

TEST_P(TensorStatsOnPath, an_empty_tensor_has_nothing) {
  for (const DType dtype : kFloats) {
    for (const StatsLevel level : kLevels) {
      OwnedTensor tensor(dtype, std::size_t{0});
      TensorStats want;
      want.level = level;
      EXPECT_EQ(stats(tensor, level), want);
    }
  }
}

TEST_P(TensorStatsOnPath, a_tensor_of_nans_has_no_extrema) {
  for (const DType dtype : kFloats) {
    OwnedTensor tensor(dtype, std::size_t{1000});
    for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, i % 2 == 0 ? kNaN : -kNaN);
    const TensorStats s = stats(tensor);
    EXPECT_EQ(s.nan, 1000);
    EXPECT_FALSE(s.has_finite());
    EXPECT_EQ(s.min, 0);
    EXPECT_EQ(s.max, 0);
    EXPECT_EQ(s.amin_nonzero, 0);
    EXPECT_EQ(s.sum, 0);
    EXPECT_TRUE(s.histogram.empty());
    for (const WhatIf& w : s.what_if) EXPECT_EQ(w, WhatIf{});
  }
}

TEST_P(TensorStatsOnPath, extrema_of_one_sided_tensors_are_right) {
  for (const DType dtype : kFloats) {
    for (const double sign : {1.0, -1.0}) {
      OwnedTensor tensor(dtype, std::size_t{777});
      for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, sign * (i % 3 == 0 ? 0.5 : 4.0));
      TensorStats s = stats(tensor);
      EXPECT_EQ(s.min, sign > 0 ? 0.5 : -4.0) << dtype_name(dtype);
      EXPECT_EQ(s.max, sign > 0 ? 4.0 : -0.5) << dtype_name(dtype);
      // One zero of either sign is the new end of the range, and never shows its sign.
      tensor.set(300, -0.0);
      s = stats(tensor);
      EXPECT_EQ(s.zero, 1);
      EXPECT_EQ(sign > 0 ? s.min : s.max, 0);
      EXPECT_FALSE(std::signbit(sign > 0 ? s.min : s.max));
      EXPECT_EQ(s.amin_nonzero, 0.5);
    }
  }
}

TEST_P(TensorStatsOnPath, negative_zeros_alone_give_positive_zero) {
  OwnedTensor tensor(DType::kF32, std::size_t{100});
  for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, -0.0);
  const TensorStats s = stats(tensor);
  EXPECT_EQ(s.zero, 100);
  EXPECT_FALSE(s.has_nonzero());
  EXPECT_FALSE(std::signbit(s.min));
  EXPECT_FALSE(std::signbit(s.max));
  EXPECT_FALSE(std::signbit(s.sum));
}

TEST_P(TensorStatsOnPath, the_first_bad_element_is_found_wherever_it_is) {
  for (const DType dtype : kFloats) {
    for (const std::size_t at : {0u, 1u, 31u, 32u, 4095u, 16384u, 32767u, 40000u, 69999u}) {
      OwnedTensor tensor(dtype, std::size_t{70000}, 1);
      tensor.set(at, kNaN);
      tensor.set(69999, kNaN);
      for (const StatsLevel level : kLevels) {
        const TensorStats s = stats(tensor, level);
        ASSERT_TRUE(s.any_nonfinite) << testing_support::describe(dtype, GetParam(), level);
        ASSERT_EQ(s.first_nonfinite, static_cast<std::int64_t>(at));
      }
    }
  }
}

TEST_P(TensorStatsOnPath, sums_with_a_known_answer_are_exact) {
  for (const DType dtype : kFloats) {
    // -2, 1 repeated: every partial sum is a small integer, so nothing may be lost.
    OwnedTensor tensor(dtype, std::size_t{100000});
    for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, i % 2 == 0 ? -2 : 1);
    const TensorStats s = stats(tensor, StatsLevel::kSums);
    EXPECT_EQ(s.sum, -50000) << dtype_name(dtype);
    EXPECT_EQ(s.sum_sq, 250000) << dtype_name(dtype);
  }
}

TEST_P(TensorStatsOnPath, sums_stay_within_the_stated_bound) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  for (const DType dtype : kFloats) {
    OwnedTensor tensor(dtype, std::size_t{200001});
    long double sum = 0, sum_abs = 0, sum_sq = 0;
    for (std::size_t i = 0; i < tensor.count(); ++i) {
      tensor.set(i, normal(random) * std::exp2(static_cast<double>(random() % 8)));
      const long double x = tensor.get(i);
      if (!std::isfinite(static_cast<double>(x))) continue;
      sum += x, sum_abs += std::abs(x), sum_sq += x * x;
    }
    const TensorStats s = stats(tensor, StatsLevel::kSums);
    const double block = 32768.0 / static_cast<double>(dtype_size(dtype));
    const double bound = (block / 32 + 7) * 0x1p-53;
    EXPECT_LE(std::abs(static_cast<double>(s.sum - sum)), bound * static_cast<double>(sum_abs));
    EXPECT_LE(std::abs(static_cast<double>(s.sum_sq - sum_sq)), bound * static_cast<double>(sum_sq));
  }
}

TEST_P(TensorStatsOnPath, sums_beyond_double_are_infinite_and_never_nan) {
  constexpr double kMax = std::numeric_limits<double>::max();
  OwnedTensor tensor(DType::kF64, std::size_t{128});
  for (std::size_t i = 0; i < 128; ++i) tensor.set(i, i < 64 ? kMax : -kMax);
  TensorStats s = stats(tensor);
  EXPECT_EQ(s.sum, 0);
  EXPECT_EQ(s.sum_sq, kInf);
  tensor.set(64, kMax);
  s = stats(tensor);
  EXPECT_EQ(s.sum, kInf);
}

TEST_P(TensorStatsOnPath, what_if_counts_fates_of_a_cast) {
  // fp32 values and what becomes of them: fp16, bf16, E4M3FN, E5M2.
  OwnedTensor tensor(DType::kF32, {
                                      1e5,        // overflow, fine, overflow, overflow
                                      65519.0,    // fine, fine, overflow, overflow
                                      464.0,      // fine in all four: 464 rounds to 448
                                      0x1p-25,    // zero, fine, zero, zero
                                      0x1.8p-25,  // subnormal, fine, zero, zero
                                      0x1p-130,   // zero, subnormal (bf16), zero, zero
                                      3.4e38,     // overflow everywhere
                                      0x1p-8,     // fine, fine, subnormal, fine
                                      0.0,
                                      kNaN,
                                  });
  const TensorStats s = stats(tensor, StatsLevel::kWhatIf);
  EXPECT_EQ(s.what_if[0], (WhatIf{2, 2, 1}));
  EXPECT_EQ(s.what_if[1], (WhatIf{1, 0, 1}));
  EXPECT_EQ(s.what_if[2], (WhatIf{3, 3, 1}));
  EXPECT_EQ(s.what_if[3], (WhatIf{3, 3, 0}));
}

TEST_P(TensorStatsOnPath, levels_are_supersets) {
  std::mt19937_64 random(5);
  for (const DType dtype : kFloats) {
    OwnedTensor tensor(dtype, std::size_t{5000});
    for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set_code(i, random());
    TensorStats full = stats(tensor);
    for (const StatsLevel level : kLevels) {
      const TensorStats s = stats(tensor, level);
      EXPECT_EQ(s.numel, full.numel);
      EXPECT_EQ(s.first_nonfinite, full.first_nonfinite);
      if (level < StatsLevel::kCounts) continue;
      EXPECT_EQ(s.nan, full.nan);
      EXPECT_EQ(s.min, full.min);
      EXPECT_EQ(s.amin_nonzero, full.amin_nonzero);
      if (level < StatsLevel::kSums) continue;
      EXPECT_EQ(s.sum, full.sum);
      if (level < StatsLevel::kWhatIf) continue;
      EXPECT_EQ(s.what_if, full.what_if);
    }
  }
}

TEST(TensorStatsIntegers, zeros_extrema_and_sums_are_counted) {
  OwnedTensor tensor(DType::kI64, {5, 0, -7, 0, 2});
  const TensorStats s = compute_stats(tensor.view(), StatsLevel::kHistogram);
  EXPECT_FALSE(s.any_nonfinite);
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.min, -7);
  EXPECT_EQ(s.max, 5);
  EXPECT_EQ(s.amax, 7);
  EXPECT_EQ(s.amin_nonzero, 2);
  EXPECT_EQ(s.sum, 0);
  EXPECT_EQ(s.sum_sq, 78);
  EXPECT_TRUE(s.histogram.empty());

  OwnedTensor extreme(DType::kI64, std::size_t{1});
  extreme.set_code(0, std::uint64_t{1} << 63);
  EXPECT_EQ(compute_stats(extreme.view(), StatsLevel::kCounts).amax, 0x1p63);
  EXPECT_EQ(compute_stats(extreme.view(), StatsLevel::kCounts).min, -0x1p63);
}

TEST(TensorStatsIntegers, a_bool_is_any_byte) {
  OwnedTensor tensor(DType::kBool, std::size_t{4});
  tensor.set_code(1, 1);
  tensor.set_code(2, 255);
  const TensorStats s = compute_stats(tensor.view(), StatsLevel::kSums);
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.max, 1);
  EXPECT_EQ(s.sum, 2);

  OwnedTensor bytes(DType::kU8, {3, 200, 0});
  EXPECT_EQ(compute_stats(bytes.view(), StatsLevel::kCounts).max, 200);
  EXPECT_EQ(compute_stats(bytes.view(), StatsLevel::kCounts).min, 0);
  OwnedTensor none(DType::kI32, std::size_t{0});
  EXPECT_EQ(compute_stats(none.view(), StatsLevel::kSums).numel, 0);
}

TEST(TensorStatsViews, a_view_that_makes_no_sense_is_refused) {
  OwnedTensor tensor(DType::kF32, {1, 2});
  TensorView no_data = tensor.view();
  no_data.data = nullptr;
  EXPECT_THROW(compute_stats(no_data, StatsLevel::kCounts), std::invalid_argument);
  TensorView no_strides = tensor.view();
  no_strides.strides = {};
  EXPECT_THROW(compute_stats(no_strides, StatsLevel::kCounts), std::invalid_argument);
  const std::int64_t negative[] = {-3};
  TensorView bad_size = tensor.view();
  bad_size.sizes = negative;
  EXPECT_THROW(compute_stats(bad_size, StatsLevel::kCounts), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt
