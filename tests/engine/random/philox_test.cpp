// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "nanhunt/engine/random.h"

namespace nanhunt::engine {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, gives_the_published_vectors) {
  // given the known answers of the authors' library: all zeros, all ones, digits of pi
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, walks_the_blocks_of_its_counter) {
  // given stream 7 of a seed that needs both key words
  const std::uint64_t seed = 0x0123456789abcdef;
  RandomStream random(seed, 7);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (std::uint32_t word : philox4x32_10({block, 0, 7, 0}, {0x89abcdef, 0x01234567})) {
      EXPECT_EQ(random.next_u32(), word);
    }
  }
}

TEST(RandomStream, starts_anywhere_without_drawing_what_comes_before) {
  RandomStream from_start(3, 1);
  for (int i = 0; i < 1001; ++i) from_start.next_u32();
  RandomStream jumped(3, 1, /*position=*/1001);
  RandomStream sought(3, 1);
  sought.next_u32();
  sought.seek(1001);
  const std::uint32_t expected = from_start.next_u32();
  EXPECT_EQ(jumped.next_u32(), expected);
  EXPECT_EQ(sought.next_u32(), expected);
  EXPECT_EQ(sought.position(), 1002u);
}

TEST(RandomStream, differs_between_seeds_and_between_streams) {
  const std::uint64_t word = RandomStream(1, 0).next_u64();
  EXPECT_NE(RandomStream(2, 0).next_u64(), word);
  EXPECT_NE(RandomStream(1, 1).next_u64(), word);
  EXPECT_NE(RandomStream(1ull << 32, 0).next_u64(), word);
  EXPECT_NE(RandomStream(1, 1ull << 32).next_u64(), word);
}

TEST(RandomStream, uniform_stays_below_one_with_the_right_moments) {
  RandomStream random(5, 0);
  constexpr int kCount = 100000;
  double sum = 0, sum_sq = 0, low = 1, high = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = random.uniform();
    sum += u;
    sum_sq += u * u;
    low = std::min(low, u);
    high = std::max(high, u);
  }
  EXPECT_GE(low, 0);
  EXPECT_LT(high, 1);
  // five standard errors: sqrt(1/12/n) = 9.1e-4
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(sum_sq / kCount, 1.0 / 3, 0.005);
}

TEST(RandomStream, normal_has_the_right_moments_and_is_finite) {
  RandomStream random(6, 0);
  constexpr int kCount = 100000;
  double sum = 0, sum_sq = 0, sum_fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    sum_sq += x * x;
    sum_fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.016);
  EXPECT_NEAR(sum_sq / kCount, 1, 0.023);
  EXPECT_NEAR(sum_fourth / kCount, 3, 0.16);
}

TEST(RandomStream, below_reaches_every_number_about_equally) {
  RandomStream random(7, 0);
  std::vector<int> counts(10);
  for (int i = 0; i < 10000; ++i) ++counts[random.below(10)];
  for (int count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_THROW((void)random.below(0), std::invalid_argument);
}

TEST(RandomPermutation, holds_every_number_once_and_repeats_for_a_seed) {
  RandomStream first(8, 0), second(8, 0), other(9, 0);
  const auto order = random_permutation(257, first);
  EXPECT_EQ(random_permutation(257, second), order);
  EXPECT_NE(random_permutation(257, other), order);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::int64_t> expected(257);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(sorted, expected);
  EXPECT_TRUE(random_permutation(0, first).empty());
  EXPECT_THROW(random_permutation(-1, first), std::invalid_argument);
}

TEST(RandomTensors, round_the_same_numbers_to_each_dtype) {
  RandomStream wide_random(10, 0), half_random(10, 0);
  const Tensor wide = uniform_tensor({4, 5}, -2, 3, DType::kF64, wide_random);
  const Tensor half = uniform_tensor({4, 5}, -2, 3, DType::kF16, half_random);
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    EXPECT_GE(wide.at(i), -2);
    EXPECT_LT(wide.at(i), 3);
    EXPECT_EQ(half.at(i), round_to(DType::kF16, wide.at(i)));
  }
}

}  // namespace
}  // namespace nanhunt::engine
