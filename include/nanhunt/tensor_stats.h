// SPDX-License-Identifier: Apache-2.0
// What nanhunt keeps of a tensor's numbers. Classification is by bit pattern, so
// fast-math and flush-to-zero modes cannot hide anything. Element order is row-major logical order,
// whatever the strides.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "nanhunt/tensor_view.h"

namespace nanhunt {

// Each level is a superset of the one before, in cost order. Written to traces: never renumber.
enum class StatsLevel : std::uint8_t {
  kFinite = 0,     // any_nonfinite, first_nonfinite
  kCounts = 1,     // + counts and extrema
  kSums = 2,       // + sum, sum_sq
  kWhatIf = 3,     // + what would happen on a cast to each target format
  kHistogram = 4,  // + one bin per binade
};

// Formats of the what-if level, in this order.
inline constexpr std::array<DType, 4> kWhatIfFormats = {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2};

struct WhatIf {
  std::int64_t overflow = 0;       // finite here, not finite (nosat) there
  std::int64_t flush_to_zero = 0;  // not zero here, zero there
  std::int64_t subnormal = 0;      // subnormal there (after rounding), zero excluded
  bool operator==(const WhatIf&) const = default;
};

struct TensorStats {
  StatsLevel level = StatsLevel::kFinite;
  std::int64_t numel = 0;
  bool any_nonfinite = false;
  std::int64_t first_nonfinite = -1;  // flat row-major index, -1: none

  // kCounts. Extrema are over finite values only; read them through has_finite()/has_nonzero().
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0;
  std::int64_t zero = 0, subnormal = 0;
  double amax = 0;          // max |x|
  double amin_nonzero = 0;  // min |x| over finite x != 0
  double min = 0, max = 0;  // -0 counts as 0 and is reported as +0

  // kSums, over finite values. Error bound: kernels/CONTRACTS.md.
  double sum = 0, sum_sq = 0;

  std::array<WhatIf, kWhatIfFormats.size()> what_if{};  // kWhatIf

  // kHistogram: bin i counts finite non-zero |x| in [2^(histogram_min_exponent+i), 2^(...+1)). Subnormals
  // are binned by their true exponent. Zeros and non-finite values are in no bin. Empty below kHistogram.
  std::int32_t histogram_min_exponent = 0;
  std::vector<std::int64_t> histogram;

  std::int64_t finite() const { return numel - nan - pos_inf - neg_inf; }
  bool has_finite() const { return finite() > 0; }
  bool has_nonzero() const { return finite() > zero; }
  std::int64_t inf() const { return pos_inf + neg_inf; }
  std::int64_t nonfinite() const { return nan + inf(); }
  bool operator==(const TensorStats&) const = default;
};

// Folds `right` into `left` as if right's elements followed left's. Exact for counts and extrema; sums
// add in this order. Both must have the same level (else throws std::invalid_argument).
void merge(TensorStats& left, const TensorStats& right);

// Statistics of a CPU tensor. Integer and bool dtypes count zeros and extrema. An empty tensor gives
// numel 0. Never reads outside the view; never throws for a valid view.
TensorStats compute_stats(const TensorView& tensor, StatsLevel level);

}  // namespace nanhunt
