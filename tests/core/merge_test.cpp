// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "nanhunt/tensor_stats.h"

namespace nanhunt {
namespace {

TensorStats one_to_four() {
  TensorStats s;
  s.level = StatsLevel::kHistogram;
  s.numel = 3;
  s.min = 1, s.max = 4, s.amax = 4, s.amin_nonzero = 1;
  s.sum = 7, s.sum_sq = 21;
  s.what_if[0] = {1, 2, 3};
  s.histogram_min_exponent = 0;
  s.histogram = {1, 1, 1};
  return s;
}

TensorStats empty() {
  TensorStats s;
  s.level = StatsLevel::kHistogram;
  return s;
}

TEST(Merge, empty_is_neutral_on_both_sides) {
  TensorStats left = empty();
  merge(left, one_to_four());
  EXPECT_EQ(left, one_to_four());
  merge(left, empty());
  EXPECT_EQ(left, one_to_four());
}

TEST(Merge, extrema_of_a_part_without_finite_values_do_not_count) {
  TensorStats bad = empty();
  bad.numel = 2, bad.nan = 1, bad.neg_inf = 1, bad.any_nonfinite = true, bad.first_nonfinite = 1;

  TensorStats merged = one_to_four();
  merge(merged, bad);

  EXPECT_EQ(merged.min, 1);
  EXPECT_EQ(merged.amin_nonzero, 1);
  EXPECT_EQ(merged.nan, 1);
  EXPECT_EQ(merged.neg_inf, 1);
  EXPECT_EQ(merged.first_nonfinite, 4);  // 3 elements before
  EXPECT_EQ(merged.finite(), 3);
}

TEST(Merge, a_part_of_zeros_has_no_smallest_non_zero_value) {
  TensorStats zeros = empty();
  zeros.numel = zeros.zero = 5;

  TensorStats merged = zeros;
  merge(merged, one_to_four());

  EXPECT_EQ(merged.amin_nonzero, 1);
  EXPECT_EQ(merged.min, 0);
  EXPECT_EQ(merged.max, 4);
  EXPECT_EQ(merged.zero, 5);
}

TEST(Merge, the_first_non_finite_index_is_the_left_ones_if_it_has_one) {
  TensorStats left = empty();
  left.numel = 10, left.pos_inf = 1, left.any_nonfinite = true, left.first_nonfinite = 7;
  TensorStats right = left;
  right.first_nonfinite = 0;

  merge(left, right);

  EXPECT_EQ(left.first_nonfinite, 7);
  EXPECT_EQ(left.pos_inf, 2);
}

TEST(Merge, histograms_of_different_ranges_are_joined) {
  TensorStats low = empty();
  low.numel = 4;
  low.amax = low.max = 0.25, low.amin_nonzero = low.min = 0.125;
  low.histogram_min_exponent = -3;
  low.histogram = {3, 1};

  TensorStats merged = one_to_four();
  merge(merged, low);

  EXPECT_EQ(merged.histogram_min_exponent, -3);
  EXPECT_EQ(merged.histogram, (std::vector<std::int64_t>{3, 1, 0, 1, 1, 1}));
  merge(low, one_to_four());
  EXPECT_EQ(low.histogram, merged.histogram);
  EXPECT_EQ(low.min, merged.min);
}

TEST(Merge, different_levels_or_impossible_histograms_are_refused) {
  TensorStats left = one_to_four();
  TensorStats other;
  other.level = StatsLevel::kCounts;
  EXPECT_THROW(merge(left, other), std::invalid_argument);
  TensorStats damaged = one_to_four();
  damaged.histogram_min_exponent = 2000000000;
  EXPECT_THROW(merge(left, damaged), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt
