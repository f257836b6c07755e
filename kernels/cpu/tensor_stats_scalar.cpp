// SPDX-License-Identifier: Apache-2.0
// The reference: one element after the other, by bit pattern. The vector paths must leave the same bits.
#include <bit>
#include <cstring>

#include "kernels/cpu/tensor_stats_block.h"

namespace nanhunt::kernels {
namespace {

template <class Code>
std::uint64_t read_code(const void* data, std::size_t i) {
  Code code = 0;
  std::memcpy(&code, static_cast<const char*>(data) + i * sizeof code, sizeof code);
  return code;
}

template <class Code>
std::int64_t find_nonfinite(const FormatCodes& f, const Block& block, std::size_t begin) {
  for (std::size_t i = begin; i < block.count; ++i) {
    if ((read_code<Code>(block.data, i) & ~f.sign) >= f.first_nonfinite) return static_cast<std::int64_t>(i);
  }
  return -1;
}

// Folds `times` elements of one code into everything but the sums.
void count_code(const FormatCodes& f, std::uint64_t code, std::int64_t times, StatsLevel level, Totals& totals) {
  const bool negative = (code & f.sign) != 0;
  const std::uint64_t magnitude = code & ~f.sign;
  if (level >= StatsLevel::kWhatIf) {
    for (int i = 0; i < kWhatIfThresholds; ++i) totals.below[i] += magnitude < f.thresholds[i] ? times : 0;
  }
  if (magnitude >= f.first_nan) {
    totals.nan += times;
    return;
  }
  if (magnitude >= f.first_nonfinite) {
    (negative ? totals.neg_inf : totals.pos_inf) += times;
    return;
  }
  std::int64_t& largest = negative ? totals.max_negative : totals.max_positive;
  if (static_cast<std::int64_t>(magnitude) > largest) largest = static_cast<std::int64_t>(magnitude);
  if (magnitude == 0) {
    totals.zero += times;
    return;
  }
  if (magnitude < totals.min_nonzero) totals.min_nonzero = magnitude;
  if (magnitude < f.min_normal) totals.subnormal += times;
  if (level >= StatsLevel::kHistogram) totals.binades[f.binade(magnitude)] += times;
}

// 256 codes: counting them first costs less than looking at each element, and makes the sums nearly exact.
// Code c is summed in lane c % 32, in the order of the codes.
void scan_bytes(const FormatCodes& f, const Block& block, std::size_t begin, StatsLevel level, Totals& totals) {
  const auto* bytes = static_cast<const unsigned char*>(block.data);
  std::uint32_t counts[4][256] = {};  // four tables: a run of one code does not wait for itself
  std::size_t i = begin;
  for (; i + 4 <= block.count; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) ++counts[k][bytes[i + k]];
  }
  for (; i < block.count; ++i) ++counts[0][bytes[i]];

  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t times = counts[0][code] + counts[1][code] + counts[2][code] + counts[3][code];
    if (times == 0) continue;
    count_code(f, code, times, level, totals);
    if (level >= StatsLevel::kSums && (code & ~f.sign) < f.first_nonfinite) {
      const auto byte = static_cast<unsigned char>(code);
      const double value = load_as_f64(f.dtype, &byte);
      totals.sum_lanes[code % kSumLanes] += times * value;
      totals.sum_sq_lanes[code % kSumLanes] += times * (value * value);
    }
  }
}

template <class Code>
void scan_codes(const FormatCodes& f, const Block& block, std::size_t begin, StatsLevel level, Totals& totals) {
  static_assert(std::endian::native == std::endian::little);  // load_as_f64 reads the code's first bytes
  for (std::size_t i = begin; i < block.count; ++i) {
    const std::uint64_t code = read_code<Code>(block.data, i);
    count_code(f, code, 1, level, totals);
    if (level >= StatsLevel::kSums && (code & ~f.sign) < f.first_nonfinite) {
      const double value = load_as_f64(f.dtype, &code);
      totals.sum_lanes[i % kSumLanes] += value;
      totals.sum_sq_lanes[i % kSumLanes] += value * value;
    }
  }
}

template <DType kDType>
constexpr StatsKernel kKernel = {
    [](const Block& block) { return first_nonfinite(kDType, block, 0) >= 0; },
    [](const Block& block, StatsLevel level, Totals& totals) { scan_scalar(kDType, block, 0, level, totals); }};

}  // namespace

std::int64_t first_nonfinite(DType dtype, const Block& block, std::size_t begin) {
  const FormatCodes& f = format_codes(dtype);
  switch (dtype_size(dtype)) {
    case 1:
      return find_nonfinite<std::uint8_t>(f, block, begin);
    case 2:
      return find_nonfinite<std::uint16_t>(f, block, begin);
    case 4:
      return find_nonfinite<std::uint32_t>(f, block, begin);
    default:
      return find_nonfinite<std::uint64_t>(f, block, begin);
  }
}

void scan_scalar(DType dtype, const Block& block, std::size_t begin, StatsLevel level, Totals& totals) {
  const FormatCodes& f = format_codes(dtype);
  switch (dtype_size(dtype)) {
    case 1:
      return scan_bytes(f, block, begin, level, totals);
    case 2:
      return scan_codes<std::uint16_t>(f, block, begin, level, totals);
    case 4:
      return scan_codes<std::uint32_t>(f, block, begin, level, totals);
    default:
      return scan_codes<std::uint64_t>(f, block, begin, level, totals);
  }
}

const StatsKernel& stats_kernel_scalar(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kKernel<DType::kF16>;
    case DType::kBF16:
      return kKernel<DType::kBF16>;
    case DType::kF32:
      return kKernel<DType::kF32>;
    case DType::kE4M3FN:
      return kKernel<DType::kE4M3FN>;
    case DType::kE5M2:
      return kKernel<DType::kE5M2>;
    default:
      return kKernel<DType::kF64>;
  }
}

}  // namespace nanhunt::kernels
