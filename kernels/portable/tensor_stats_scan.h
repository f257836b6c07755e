// SPDX-License-Identifier: Apache-2.0
// What one thread does with its vectors of a work item: a scan for 16-bit lanes, two at a time (fp16, bf16 and,
// widened, the two formats of 8 bits), one for fp32 and fp64, one for integers.
//
// A loop over finite numbers only is short. So elements that are not finite are counted one by one, off the loop, and
// replaced by +0, as are those that a tensor's last vector has not got; how many zeros were put in is known and taken
// off again. Zeros change no sum, no binade and no smallest magnitude. Whether +0 is the largest number with its sign
// bit clear only because it was put in is told by the count of zeros: see finish_zeros().
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/portable/host_device.h"
#include "kernels/portable/tensor_stats_formats.h"
#include "kernels/portable/tensor_stats_vectors.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kStatsThreads = 256;
inline constexpr int kStatsUnroll = 4;

// What is known of some elements of one tensor: of a thread's, a block's, all. Sums carry LaneFormat's scale until the
// end.
struct StatsPartial {
  std::uint64_t first;  // logical index, kNoIndex: none
  std::uint64_t nan, pos_inf, neg_inf, zero, subnormal;
  std::int64_t largest, largest_negative;  // as in DeviceStatsRecord
  std::uint64_t least_nonzero;
  double sum, sum_sq;
  double sum_small;  // fp64 only: the sum of x * 2^-64, which cannot overflow
};

NANHUNT_HOST_DEVICE inline StatsPartial empty_partial(bool integer) {
  const std::int64_t none = integer ? -0x7fffffffffffffff - 1 : -1;
  return {kNoIndex, 0, 0, 0, 0, 0, none, none, kNoIndex, 0, 0, 0};
}

// `right` holds elements that come after those of `into`, by the order of threads, warps or items. Exact but for the
// sums, which add in this order.
NANHUNT_HOST_DEVICE inline void fold_partial(StatsPartial& into, const StatsPartial& right) {
  into.first = lesser(into.first, right.first);
  into.nan += right.nan;
  into.pos_inf += right.pos_inf;
  into.neg_inf += right.neg_inf;
  into.zero += right.zero;
  into.subnormal += right.subnormal;
  into.largest = greater(into.largest, right.largest);
  into.largest_negative = greater(into.largest_negative, right.largest_negative);
  into.least_nonzero = lesser(into.least_nonzero, right.least_nonzero);
  into.sum += right.sum;
  into.sum_sq += right.sum_sq;
  into.sum_small += right.sum_small;
}

// Of a whole tensor: a largest number 0 where there is no zero was put in by the scan.
NANHUNT_HOST_DEVICE inline void finish_zeros(StatsPartial& all) {
  if (all.zero == 0 && all.largest == 0) all.largest = -1;
}

// The elements of one work item that fall to one thread: vectors begin + thread, + 256, ... below end.
struct ItemRange {
  std::uint64_t begin = 0, end = 0;  // vectors
};

// Off the loop: elements that are not finite. Kept in memory, not in registers.
struct Odd {
  std::uint64_t first;
  std::uint32_t nan, pos_inf, neg_inf;
  std::uint32_t zeros_put;
};

template <DType kDType>
NANHUNT_HOST_DEVICE NANHUNT_RARE inline Vector replace_odd(const DeviceStatsView& view, std::uint64_t j, Vector v,
                                                           std::uint32_t valid, Odd& odd) {
  using Format = StatsFormat<kDType>;
  constexpr std::uint32_t kBits = 8 * Format::kBytes;
  constexpr std::uint32_t kLanes = kVectorBytes / Format::kBytes;
  constexpr std::uint64_t kSign = std::uint64_t{1} << (kBits - 1);
  odd.zeros_put += kLanes - valid;
  std::uint64_t halves[2] = {std::uint64_t{v.words[1]} << 32 | v.words[0],
                             std::uint64_t{v.words[3]} << 32 | v.words[2]};
  NANHUNT_UNROLL
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t k = 0; k < kLanes / 2; ++k) {
      const std::uint32_t lane = half * (kLanes / 2) + k;
      if (lane >= valid) break;
      const std::uint64_t mask = ((kSign - 1) | kSign) << kBits * k;
      const std::uint64_t code = (halves[half] & mask) >> kBits * k;
      const std::uint64_t magnitude = code & (kSign - 1);
      if (magnitude < Format::kFirstNonfinite) continue;
      if (magnitude >= Format::kFirstNan) {
        ++odd.nan;
      } else {
        ++(code != magnitude ? odd.neg_inf : odd.pos_inf);
      }
      odd.first = lesser(odd.first, logical_of(view, j * kLanes + lane));
      halves[half] &= ~mask;
      ++odd.zeros_put;
    }
  }
  return {{static_cast<std::uint32_t>(halves[0]), static_cast<std::uint32_t>(halves[0] >> 32),
           static_cast<std::uint32_t>(halves[1]), static_cast<std::uint32_t>(halves[1] >> 32)}};
}

// Hands every vector of the thread's share to take(vector, j, valid), in rising order. Loads come first where they can.
template <class Take>
NANHUNT_HOST_DEVICE inline void for_each_vector(const DeviceStatsView& view, std::uint32_t bytes, ItemRange item,
                                                std::uint32_t thread, Take take) {
  const std::uint32_t lanes = kVectorBytes / bytes;
  const std::uint64_t data = view.data;  // in a register: `take` may write to memory
  std::uint64_t j = item.begin + thread;
  if (view.gapless && data % kVectorBytes == 0) {
    const std::uint64_t whole = lesser(item.end, view.count / lanes);
    for (; j + (kStatsUnroll - 1) * kStatsThreads < whole; j += kStatsUnroll * kStatsThreads) {
      Vector v[kStatsUnroll];
      NANHUNT_UNROLL
      for (int u = 0; u < kStatsUnroll; ++u) v[u] = load_aligned(data + (j + u * kStatsThreads) * kVectorBytes);
      NANHUNT_UNROLL
      for (int u = 0; u < kStatsUnroll; ++u) take(v[u], j + u * kStatsThreads, lanes);
    }
  }
  for (; j < item.end; j += kStatsThreads) {
    std::uint32_t valid = 0;
    const Vector v = load_vector(view, bytes, j, valid);
    take(v, j, valid);
  }
}

// Two 16-bit lanes to a word.
inline constexpr std::uint32_t kHighBits = 0x80008000u;
NANHUNT_HOST_DEVICE constexpr std::uint32_t both_lanes(std::uint32_t x) { return x << 16 | x; }

template <class Pick>
NANHUNT_HOST_DEVICE inline std::uint32_t by_lane(std::uint32_t a, std::uint32_t b, Pick pick) {
  const std::uint32_t low = pick(a & 0xffffu, b & 0xffffu);
  return pick(a >> 16, b >> 16) << 16 | low;
}
NANHUNT_HOST_DEVICE inline std::uint32_t max_signed(std::uint32_t a, std::uint32_t b) {
#if NANHUNT_ON_DEVICE
  return __vmaxs2(a, b);
#else
  return by_lane(a, b, [](std::uint32_t x, std::uint32_t y) { return (x ^ 0x8000u) < (y ^ 0x8000u) ? y : x; });
#endif
}
NANHUNT_HOST_DEVICE inline std::uint32_t min_signed(std::uint32_t a, std::uint32_t b) {
#if NANHUNT_ON_DEVICE
  return __vmins2(a, b);
#else
  return by_lane(a, b, [](std::uint32_t x, std::uint32_t y) { return (y ^ 0x8000u) < (x ^ 0x8000u) ? y : x; });
#endif
}
NANHUNT_HOST_DEVICE inline std::uint32_t max_unsigned(std::uint32_t a, std::uint32_t b) {
#if NANHUNT_ON_DEVICE
  return __vmaxu2(a, b);
#else
  return by_lane(a, b, [](std::uint32_t x, std::uint32_t y) { return greater(x, y); });
#endif
}

// The high bit of each lane whose magnitude is below `limit` (at most 0x8000). `high` is the word with all high bits
// set, so no lane borrows from the next.
NANHUNT_HOST_DEVICE inline std::uint32_t lanes_below(std::uint32_t high, std::uint32_t limit) {
  return ~(high - both_lanes(limit)) & kHighBits;
}
// How many of four words' flags are set, by one count.
NANHUNT_HOST_DEVICE inline std::uint32_t count_flags(const std::uint32_t (&flags)[4]) {
  return static_cast<std::uint32_t>(bits_set(flags[0] | flags[1] >> 1 | flags[2] >> 2 | flags[3] >> 3));
}

template <DType kDType>
NANHUNT_HOST_DEVICE inline bool any_odd(const Vector& v) {
  using Format = StatsFormat<kDType>;
  if constexpr (Format::kBytes <= 2) {
    constexpr std::uint32_t kHigh = Format::kBytes == 1 ? 0x80808080u : kHighBits;
    constexpr std::uint32_t kLimit =
        static_cast<std::uint32_t>(Format::kFirstNonfinite) * (Format::kBytes == 1 ? 0x01010101u : 0x00010001u);
    std::uint32_t odd = 0;
    NANHUNT_UNROLL
    for (const std::uint32_t word : v.words) odd |= (word | kHigh) - kLimit;
    return (odd & kHigh) != 0;
  } else if constexpr (Format::kBytes == 4) {
    std::uint32_t odd = 0;
    NANHUNT_UNROLL
    for (const std::uint32_t word : v.words) {
      odd |= (word | 0x80000000u) - static_cast<std::uint32_t>(Format::kFirstNonfinite);
    }
    return odd >> 31 != 0;
  } else {  // an exponent of ones: the upper word tells
    return (v.words[1] & 0x7ff00000u) == 0x7ff00000u || (v.words[3] & 0x7ff00000u) == 0x7ff00000u;
  }
}

template <DType kDType>
class LaneScan {
 public:
  using Lane = LaneFormat<kDType>;

  // Eight lanes, all finite.
  NANHUNT_HOST_DEVICE void take(const std::uint32_t (&words)[4]) {
    std::uint32_t high[4], zero[4], small[4];
    NANHUNT_UNROLL
    for (int w = 0; w < 4; ++w) {
      high[w] = words[w] | kHighBits;
      largest_ = max_signed(largest_, words[w]);
      largest_unsigned_ = max_unsigned(largest_unsigned_, words[w]);
      const std::uint32_t less_one = high[w] - both_lanes(1);  // 0 becomes the largest signed number
      least_ = min_signed(least_, less_one);
      zero[w] = ~less_one & kHighBits;
      small[w] = lanes_below(high[w], Lane::kMinNormal);
    }
    zero_ += count_flags(zero);
    small_ += count_flags(small);
    add_sums(words);
  }

  NANHUNT_HOST_DEVICE void finish(const Odd& odd, StatsPartial& out) const {
    const std::int32_t top = greater(static_cast<std::int16_t>(largest_), static_cast<std::int16_t>(largest_ >> 16));
    out.largest = top < 0 ? -1 : top >> Lane::kShift;
    const std::uint32_t top_unsigned = greater(largest_unsigned_ & 0xffffu, largest_unsigned_ >> 16);
    out.largest_negative =
        top_unsigned < 0x8000u ? -1 : static_cast<std::int64_t>((top_unsigned & 0x7fffu) >> Lane::kShift);
    const std::int32_t least = lesser(static_cast<std::int16_t>(least_), static_cast<std::int16_t>(least_ >> 16));
    out.least_nonzero =
        least >= 0 ? kNoIndex : ((static_cast<std::uint32_t>(least) & 0x7fffu) + 1) >> Lane::kShift;
    out.subnormal = small_ - zero_;
    out.zero = zero_ - odd.zeros_put;
    out.sum = sum_;
    out.sum_sq = sum_sq_;
  }

 private:
  // Pairs, then pairs of pairs: three roundings to each eight numbers. Squares are exact in double.
  NANHUNT_HOST_DEVICE void add_sums(const std::uint32_t (&words)[4]) {
    double sums[4], squares[4];
    NANHUNT_UNROLL
    for (int w = 0; w < 4; ++w) {
      const double low = lane_value<kDType>(words[w] & 0xffffu);
      const double up = lane_value<kDType>(words[w] >> 16);
      sums[w] = low + up;
      squares[w] = multiply_add(low, low, up * up);
    }
    sum_ += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum_sq_ += (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }

  std::uint32_t largest_ = kHighBits;   // signed lanes: those with the sign bit clear win
  std::uint32_t largest_unsigned_ = 0;  // those with the sign bit set win, by magnitude
  std::uint32_t least_ = 0x7fff7fffu;   // signed lanes of magnitude - 1 - 2^15
  std::uint32_t zero_ = 0, small_ = 0;  // small: zeros and subnormals
  double sum_ = 0, sum_sq_ = 0;
};

// fp32 and fp64: one number at a time.
template <DType kDType>
class WordScan {
 public:
  using Format = StatsFormat<kDType>;
  using Code = std::conditional_t<kDType == DType::kF32, std::uint32_t, std::uint64_t>;
  using Signed = std::make_signed_t<Code>;
  using Value = std::conditional_t<kDType == DType::kF32, float, double>;
  static constexpr Code kSign = Code{1} << (8 * sizeof(Code) - 1);
  static constexpr int kCodes = kVectorBytes / sizeof(Code);

  NANHUNT_HOST_DEVICE void take(const Vector& v) {
    double sums[kCodes], squares[kCodes], small_sums[kCodes];
    NANHUNT_UNROLL
    for (int i = 0; i < kCodes; ++i) {
      const Code code = code_of(v, i);
      const Code magnitude = code & (kSign - 1);
      largest_ = greater(largest_, static_cast<Signed>(code));
      largest_unsigned_ = greater(largest_unsigned_, code);
      least_ = lesser(least_, static_cast<Code>(magnitude - 1));
      zero_ += magnitude == 0 ? 1 : 0;
      small_ += magnitude < static_cast<Code>(min_normal<kDType>()) ? 1 : 0;
      sums[i] = static_cast<double>(bits_as<Value>(code));
      squares[i] = sums[i] * sums[i];
      if constexpr (kDType == DType::kF64) small_sums[i] = sums[i] * 0x1p-64;
    }
    sum_ += in_pairs(sums);
    sum_sq_ += in_pairs(squares);
    if constexpr (kDType == DType::kF64) sum_small_ += in_pairs(small_sums);
  }

  NANHUNT_HOST_DEVICE void finish(const Odd& odd, StatsPartial& out) const {
    out.largest = largest_ < 0 ? -1 : static_cast<std::int64_t>(largest_);
    out.largest_negative = largest_unsigned_ < kSign ? -1 : static_cast<std::int64_t>(largest_unsigned_ & (kSign - 1));
    out.least_nonzero = least_ == static_cast<Code>(~Code{0}) ? kNoIndex : std::uint64_t{least_} + 1;
    out.subnormal = small_ - zero_;
    out.zero = zero_ - odd.zeros_put;
    out.sum = sum_;
    out.sum_sq = sum_sq_;
    out.sum_small = sum_small_;
  }

 private:
  NANHUNT_HOST_DEVICE static Code code_of(const Vector& v, int i) {
    if constexpr (kCodes == 4) {
      return v.words[i];
    } else {
      return std::uint64_t{v.words[2 * i + 1]} << 32 | v.words[2 * i];
    }
  }
  NANHUNT_HOST_DEVICE static double in_pairs(const double (&x)[kCodes]) {
    if constexpr (kCodes == 4) {
      return (x[0] + x[1]) + (x[2] + x[3]);
    } else {
      return x[0] + x[1];
    }
  }
  Signed largest_ = -1;  // any negative one: none
  Code largest_unsigned_ = 0;
  Code least_ = static_cast<Code>(~Code{0});  // of magnitude - 1: 0 becomes the largest
  std::uint32_t zero_ = 0, small_ = 0;
  double sum_ = 0, sum_sq_ = 0, sum_small_ = 0;
};

// Words of 8 bits as two vectors of 16-bit lanes: the odd bytes of each word, then the even ones.
NANHUNT_HOST_DEVICE inline void widen(const Vector& v, std::uint32_t (&up)[4], std::uint32_t (&low)[4]) {
  NANHUNT_UNROLL
  for (int w = 0; w < 4; ++w) {
    up[w] = v.words[w] & 0xff00ff00u;
    low[w] = v.words[w] << 8 & 0xff00ff00u;
  }
}

template <DType kDType>
using FloatScan = std::conditional_t<StatsFormat<kDType>::kBytes <= 2, LaneScan<kDType>, WordScan<kDType>>;

template <DType kDType, class Scan>
NANHUNT_HOST_DEVICE inline void take_vector(Scan& scan, const DeviceStatsView& view, Vector v, std::uint64_t j,
                                            std::uint32_t valid, Odd& odd) {
  using Format = StatsFormat<kDType>;
  if (any_odd<kDType>(v) || valid < kVectorBytes / Format::kBytes) v = replace_odd<kDType>(view, j, v, valid, odd);
  if constexpr (Format::kBytes == 1) {
    std::uint32_t up[4], low[4];
    widen(v, up, low);
    scan.take(up);
    scan.take(low);
  } else if constexpr (Format::kBytes == 2) {
    scan.take(v.words);
  } else {
    scan.take(v);
  }
}

template <DType kDType>
NANHUNT_HOST_DEVICE inline void scan_float(const DeviceStatsView& view, ItemRange item, std::uint32_t thread,
                                           StatsPartial& out) {
  Odd odd = {kNoIndex, 0, 0, 0, 0};
  FloatScan<kDType> scan;
  for_each_vector(view, StatsFormat<kDType>::kBytes, item, thread,
                  [&](const Vector& v, std::uint64_t j, std::uint32_t valid) {
                    take_vector<kDType>(scan, view, v, j, valid, odd);
                  });
  scan.finish(odd, out);
  out.nan = odd.nan;
  out.pos_inf = odd.pos_inf;
  out.neg_inf = odd.neg_inf;
  out.first = odd.first;
}

// Integers and bool: zeros, extrema and sums as doubles.
template <DType kDType>
NANHUNT_HOST_DEVICE inline void take_integers(StatsPartial& mine, const Vector& v, std::uint32_t valid) {
  constexpr std::uint32_t kBytes = kDType == DType::kI64 ? 8 : kDType == DType::kI32 ? 4 : 1;
  NANHUNT_UNROLL
  for (std::uint32_t i = 0; i < kVectorBytes / kBytes; ++i) {
    if (i >= valid) continue;
    std::int64_t x = 0;
    if constexpr (kDType == DType::kI64) {
      x = static_cast<std::int64_t>(std::uint64_t{v.words[2 * i + 1]} << 32 | v.words[2 * i]);
    } else if constexpr (kDType == DType::kI32) {
      x = static_cast<std::int32_t>(v.words[i]);
    } else {
      x = v.words[i / 4] >> 8 * (i % 4) & 0xffu;
      if constexpr (kDType == DType::kBool) x = x != 0 ? 1 : 0;
    }
    mine.largest = greater(mine.largest, x);
    mine.largest_negative = greater(mine.largest_negative, ~x);
    mine.zero += x == 0 ? 1 : 0;
    const std::uint64_t magnitude = x < 0 ? ~static_cast<std::uint64_t>(x) + 1 : static_cast<std::uint64_t>(x);
    mine.least_nonzero = lesser(mine.least_nonzero, magnitude - 1);  // 0 wraps around to the largest
    const auto real = static_cast<double>(x);
    mine.sum += real;
    mine.sum_sq = mine.sum_sq + real * real;
  }
}
NANHUNT_HOST_DEVICE inline StatsPartial finished_integers(StatsPartial mine) {
  if (mine.least_nonzero != kNoIndex) ++mine.least_nonzero;
  return mine;
}
template <DType kDType>
NANHUNT_HOST_DEVICE inline void scan_integer(const DeviceStatsView& view, ItemRange item, std::uint32_t thread,
                                             StatsPartial& out) {
  constexpr std::uint32_t kBytes = kDType == DType::kI64 ? 8 : kDType == DType::kI32 ? 4 : 1;
  StatsPartial mine = empty_partial(true);
  for_each_vector(view, kBytes, item, thread, [&](const Vector& v, std::uint64_t, std::uint32_t valid) {
    take_integers<kDType>(mine, v, valid);
  });
  out = finished_integers(mine);
}

}  // namespace nanhunt::kernels::cuda
