// SPDX-License-Identifier: Apache-2.0
// How compute_stats is divided: the walk over a tensor (tensor_stats.cpp) cuts it into blocks, a kernel folds
// one block into Totals. There is one kernel per dtype and path; all paths leave the same bits in Totals.
// Everything here is plain data: the vector paths may not use inline code of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "nanhunt/dtype.h"
#include "nanhunt/tensor_stats.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::kernels {

// A block is this many bytes of consecutive elements (the last one may be shorter). It fixes the order of
// sums: 32 lanes, element i in lane i % 32, folded at the end of each block (fold_lanes).
inline constexpr std::size_t kBlockBytes = 32768;
inline constexpr int kSumLanes = 32;
inline constexpr int kWhatIfThresholds = 12;  // three for each of the four target formats

// A floating format as its codes. Magnitudes (codes without the sign bit) grow with the absolute value.
struct FormatCodes {
  DType dtype;
  std::uint64_t sign;             // the sign bit
  std::uint64_t first_nonfinite;  // smallest magnitude that is Inf or NaN
  std::uint64_t first_nan;        // smallest magnitude that is NaN
  std::uint64_t min_normal;
  int mantissa_bits;
  // Counting magnitudes below these answers the what-if level: for each target format the first magnitude
  // that does not become zero, the first that does not become subnormal, the first that overflows.
  std::uint64_t thresholds[kWhatIfThresholds];

  // Place of a finite non-zero magnitude in the table of binades: 0 is the smallest subnormal's binade.
  int binade(std::uint64_t magnitude) const {
    const std::uint64_t exponent = magnitude >> mantissa_bits;
    return exponent != 0 ? static_cast<int>(exponent) - 1 + mantissa_bits : 63 - __builtin_clzll(magnitude);
  }
  int binades() const { return binade(first_nonfinite - 1) + 1; }
};
const FormatCodes& format_codes(DType dtype);  // floating dtypes only

struct Block {
  const void* data = nullptr;  // not necessarily aligned
  std::size_t count = 0;       // elements
  const void* next = nullptr;  // a whole block worth prefetching, or nullptr
};

struct Totals {
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, subnormal = 0;
  // Magnitudes of finite values. Largest with the sign bit clear and set (-1: none); smallest that is not zero.
  // Smallest and largest value follow from these: see finish() in tensor_stats.cpp.
  std::int64_t max_positive = -1, max_negative = -1;
  std::uint64_t min_nonzero = ~std::uint64_t{0};

  double sum = 0, sum_rest = 0;  // compensated sum of the blocks so far
  double sum_sq = 0, sum_sq_rest = 0;
  double sum_lanes[kSumLanes] = {};  // of the current block, all zero between blocks
  double sum_sq_lanes[kSumLanes] = {};

  std::int64_t below[kWhatIfThresholds] = {};  // elements (NaNs and infinities included where they belong)
  std::int64_t* binades = nullptr;             // histogram level: a table of FormatCodes::binades() counts

  std::int64_t nonfinite() const { return nan + pos_inf + neg_inf; }
};

// One dtype on one path. `scan` serves the levels from kCounts on and leaves sums in the lanes.
struct StatsKernel {
  bool (*any_nonfinite)(const Block& block);
  void (*scan)(const Block& block, StatsLevel level, Totals& totals);
};
const StatsKernel& stats_kernel(DType dtype, Simd simd);  // floating dtypes; the path must be supported

// The readable reference, used as it is where there is nothing better and for the ends of blocks.
// Elements count from `begin`, a multiple of kSumLanes, to the block's end.
std::int64_t first_nonfinite(DType dtype, const Block& block, std::size_t begin);  // -1: none
void scan_scalar(DType dtype, const Block& block, std::size_t begin, StatsLevel level, Totals& totals);
const StatsKernel& stats_kernel_scalar(DType dtype);

// The vector paths; nullptr where a build or a path has none for the dtype.
const StatsKernel* stats_kernel_avx2(DType dtype);
const StatsKernel* stats_kernel_avx512(DType dtype);

// Ends a block: folds the lanes in a fixed tree and adds the result to the compensated sums.
void fold_lanes(Totals& totals);

// Totals of `count` walked elements, each standing for `repeats`, as statistics; `sum` is that of all of them.
TensorStats finish_totals(const FormatCodes& f, std::int64_t count, std::int64_t repeats, StatsLevel level,
                          const Totals& totals, double sum);

// Integer and bool dtypes have one path.
TensorStats integer_stats(const TensorView& tensor, StatsLevel level);

// compute_stats on a given path, for tests and benchmarks.
TensorStats compute_stats_on(Simd simd, const TensorView& tensor, StatsLevel level);

}  // namespace nanhunt::kernels
