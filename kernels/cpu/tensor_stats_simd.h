// SPDX-License-Identifier: Apache-2.0
// The vector kernels, written once over a description V of a format on an instruction set. Included by
// tensor_stats_avx2.cpp and tensor_stats_avx512.cpp between the pragmas that switch the target on; all its names
// are local to them.
//
// A block is scanned in passes over L1/L2-resident data rather than in one loop: what a level does not need it does
// not pay, and what the first pass learns (smallest and largest magnitude) makes most of the rest unnecessary.
// Meanwhile the passes prefetch the next block, see Prefetcher.
//
// V offers (Code: unsigned integer of the format's size; Vec: kWidth of them; Real: kRealWidth doubles):
//   load, set1, zero, magnitude(v), max_signed, max_unsigned, min_unsigned, store
//   track_nonzero(v, least, count): least = min over v != 0; count += 1 where (v != 0) == kCountsNonzero
//   add_if_below(count, v, limit), add_if_equal(count, v, code), keep_below(v, limit, magnitude, otherwise)
//   to_real(const Code*), finite_or_zero(Real), add_real, add_square, real_zero, store_real
//   one_hots(v, top, out): a bit 1 << (top - exponent field) per element, in kOneHots vectors of kWindow-bit lanes
//   Bits: those lanes as sets of bits; bits_zero, half_add, full_add, count_bit
#pragma once

namespace nanhunt::kernels {
namespace {

// Fetches the next block while this one is worked on, a line of each of its eight 4 KiB pages at a time: the
// memory system runs more fetches ahead for several pages than for one. Without it the passes would leave memory
// idle; with it the scan runs at the speed of a plain read as long as it computes fast enough. Each pass of a scan
// takes some of the pages, so that memory is busy all the time.
class Prefetcher {
 public:
  Prefetcher() = default;  // fetches nothing
  Prefetcher(const Block& block, int first_page, int last_page)
      : next_(static_cast<const char*>(block.next)),
        first_(first_page * kPage),
        last_(next_ != nullptr ? last_page * kPage : 0) {}

  // One cache line of each page. Called once for every eight lines that a pass reads.
  void step() {
    for (int page = first_; page < last_; page += kPage) __builtin_prefetch(next_ + page + line_, 0, 3);
    line_ += 64;
  }
  static constexpr int kPages = 8;
  static constexpr int kPage = static_cast<int>(kBlockBytes) / kPages;
  static_assert(kPage == 4096);

 private:
  const char* next_ = nullptr;
  int first_ = 0;
  int last_ = 0;  // no page at all where there is no next block
  int line_ = 0;
};

template <class V>
constexpr int kVectors = kSumLanes / V::kWidth;  // per unit: all passes step by units of kSumLanes elements

// Calls body(at) for each unit, from first to last, and steps the prefetcher.
template <class V, class Body>
inline __attribute__((always_inline)) void for_each_unit(const typename V::Code* codes, std::size_t units,
                                                         Prefetcher prefetch, Body body) {
  constexpr std::size_t kGroup = Prefetcher::kPages * 64 / (kSumLanes * sizeof(typename V::Code));  // units
  for (; units >= kGroup; units -= kGroup) {
    prefetch.step();
    for (std::size_t i = 0; i < kGroup; ++i, codes += kSumLanes) body(codes);
  }
  for (; units > 0; --units, codes += kSumLanes) body(codes);
}

// What one block adds to the counts and extrema of Totals.
struct BlockCounts {
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0;
  std::int64_t max_positive = -1, max_negative = -1;
  std::uint64_t min_nonzero = ~std::uint64_t{0};
  std::uint64_t largest() const {
    return static_cast<std::uint64_t>(max_positive > max_negative ? max_positive : max_negative);
  }
};

template <class V>
std::int64_t sum_of(typename V::Vec counts) {
  alignas(64) typename V::Code lanes[V::kWidth];
  V::store(lanes, counts);
  std::int64_t sum = 0;
  for (int i = 0; i < V::kWidth; ++i) sum += static_cast<std::int64_t>(lanes[i]);
  return sum;
}

// Combines all lanes of v: rotates by half, a quarter, ... through memory.
template <class V, typename V::Vec (*kCombine)(typename V::Vec, typename V::Vec)>
typename V::Code combined(typename V::Vec v) {
  alignas(64) typename V::Code twice[2 * V::kWidth];
  for (int step = V::kWidth / 2; step > 0; step /= 2) {
    V::store(twice, v);
    V::store(twice + V::kWidth, v);
    v = kCombine(v, V::load(twice + step));
  }
  V::store(twice, v);
  return twice[0];
}

// Seen as integers with and without sign, the largest code is the largest positive value and the most
// negative value: two instructions for what would take four, and no key to compute.
template <class V>
void read_extrema(typename V::Vec max_signed, typename V::Vec max_unsigned, typename V::Vec least,
                  BlockCounts& counts) {
  using Code = typename V::Code;
  constexpr Code kSign = static_cast<Code>(Code{1} << (8 * sizeof(Code) - 1));
  const Code best_signed = combined<V, V::max_signed>(max_signed);
  const Code best_unsigned = combined<V, V::max_unsigned>(max_unsigned);
  const Code smallest = combined<V, V::min_unsigned>(least);
  if (best_signed < kSign) counts.max_positive = static_cast<std::int64_t>(best_signed);
  if (best_unsigned >= kSign) counts.max_negative = static_cast<std::int64_t>(best_unsigned & ~kSign);
  if (smallest != static_cast<Code>(~Code{0})) counts.min_nonzero = smallest;
}

// The pass of level kCounts. Sees non-finite values as large ones: the caller looks at the maximum and, where
// there are any, has count_nonfinite do the work again.
template <class V>
BlockCounts count_pass(const typename V::Code* codes, std::size_t units, Prefetcher prefetch) {
  using Code = typename V::Code;
  using Vec = typename V::Vec;
  Vec max_signed = V::set1(static_cast<Code>(Code{1} << (8 * sizeof(Code) - 1)));
  Vec max_unsigned = V::zero();
  Vec least = V::set1(static_cast<Code>(~Code{0}));
  Vec nonzero = V::zero();
  for_each_unit<V>(codes, units, prefetch, [&](const Code* at) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors<V>; ++i) {
      const Vec v = V::load(at + i * V::kWidth);
      max_signed = V::max_signed(max_signed, v);
      max_unsigned = V::max_unsigned(max_unsigned, v);
      V::track_nonzero(V::magnitude(v), least, nonzero);
    }
  });
  BlockCounts counts;
  read_extrema<V>(max_signed, max_unsigned, least, counts);
  const std::int64_t counted = sum_of<V>(nonzero);
  counts.zero = V::kCountsNonzero ? static_cast<std::int64_t>(units * kSumLanes) - counted : counted;
  return counts;
}

// The same for a block with NaNs or infinities: they are counted apart and kept out of everything else.
template <class V>
BlockCounts count_nonfinite(const FormatCodes& f, const typename V::Code* codes, std::size_t units) {
  using Code = typename V::Code;
  using Vec = typename V::Vec;
  const auto sign = static_cast<Code>(f.sign);
  const auto infinity = static_cast<Code>(f.first_nonfinite);
  const Vec limit = V::set1(infinity);
  const Vec first_nan = V::set1(static_cast<Code>(f.first_nan));
  const Vec positive = V::set1(infinity);
  const Vec negative = V::set1(static_cast<Code>(sign | infinity));
  const Vec smallest_signed = V::set1(sign);
  Vec max_signed = smallest_signed;
  Vec max_unsigned = V::zero();
  Vec least = V::set1(static_cast<Code>(~Code{0}));
  Vec nonzero = V::zero();
  Vec not_nan = V::zero();
  Vec pos_inf = V::zero();
  Vec neg_inf = V::zero();
  const Code* const end = codes + units * kSumLanes;
  for (const Code* at = codes; at != end; at += V::kWidth) {
    const Vec v = V::load(at);
    const Vec magnitude = V::magnitude(v);
    not_nan = V::add_if_below(not_nan, magnitude, first_nan);
    pos_inf = V::add_if_equal(pos_inf, v, positive);
    neg_inf = V::add_if_equal(neg_inf, v, negative);
    max_signed = V::max_signed(max_signed, V::keep_below(magnitude, limit, v, smallest_signed));
    max_unsigned = V::max_unsigned(max_unsigned, V::keep_below(magnitude, limit, v, V::zero()));
    V::track_nonzero(V::keep_below(magnitude, limit, magnitude, V::zero()), least, nonzero);
  }
  const auto count = static_cast<std::int64_t>(units * kSumLanes);
  BlockCounts counts;
  counts.nan = count - sum_of<V>(not_nan);
  counts.pos_inf = sum_of<V>(pos_inf);
  counts.neg_inf = sum_of<V>(neg_inf);
  read_extrema<V>(max_signed, max_unsigned, least, counts);
  const std::int64_t counted = sum_of<V>(nonzero);
  const std::int64_t zero_or_nonfinite = V::kCountsNonzero ? count - counted : counted;
  counts.zero = zero_or_nonfinite - counts.nan - counts.pos_inf - counts.neg_inf;
  return counts;
}

template <class V, bool kFinite>
void sum_pass(const typename V::Code* codes, std::size_t units, Prefetcher prefetch, Totals& totals) {
  using Code = typename V::Code;
  using Real = typename V::Real;
  constexpr int kReals = V::kSumLanesPerPass / V::kRealWidth;
  for (int first = 0; first < kSumLanes; first += V::kSumLanesPerPass) {
    Real sums[kReals];
    Real squares[kReals];
    for (int i = 0; i < kReals; ++i) sums[i] = squares[i] = V::real_zero();
    for_each_unit<V>(codes, units, first == 0 ? prefetch : Prefetcher(), [&](const Code* at) {
#pragma GCC unroll 8
      for (int i = 0; i < kReals; ++i) {
        Real x = V::to_real(at + first + i * V::kRealWidth);
        if constexpr (!kFinite) x = V::finite_or_zero(x);
        sums[i] = V::add_real(sums[i], x);
        squares[i] = V::add_square(squares[i], x);
      }
    });
    for (int i = 0; i < kReals; ++i) {
      V::store_real(totals.sum_lanes + first + i * V::kRealWidth, sums[i]);
      V::store_real(totals.sum_sq_lanes + first + i * V::kRealWidth, squares[i]);
    }
  }
}

// Counts magnitudes below each of kLimits limits.
template <class V, int kLimits>
void below_pass(const typename V::Code* codes, std::size_t units, const std::uint64_t* limits, std::int64_t* below) {
  using Code = typename V::Code;
  using Vec = typename V::Vec;
  Vec limit[kLimits];
  Vec count[kLimits];
  for (int i = 0; i < kLimits; ++i) {
    limit[i] = V::set1(static_cast<Code>(limits[i]));
    count[i] = V::zero();
  }
  for_each_unit<V>(codes, units, Prefetcher(), [&](const Code* at) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors<V>; ++i) {
      const Vec magnitude = V::magnitude(V::load(at + i * V::kWidth));
#pragma GCC unroll 4
      for (int k = 0; k < kLimits; ++k) count[k] = V::add_if_below(count[k], magnitude, limit[k]);
    }
  });
  for (int i = 0; i < kLimits; ++i) below[i] = sum_of<V>(count[i]);
}

template <class V>
void count_below(const typename V::Code* codes, std::size_t units, const std::uint64_t* limits, std::int64_t* below,
                 int number) {
  for (; number >= 4; number -= 4, limits += 4, below += 4) below_pass<V, 4>(codes, units, limits, below);
  if (number == 3) below_pass<V, 3>(codes, units, limits, below);
  if (number == 2) below_pass<V, 2>(codes, units, limits, below);
  if (number == 1) below_pass<V, 1>(codes, units, limits, below);
}

// The pass of level kWhatIf. A limit outside the block's range of magnitudes is answered without looking.
template <class V>
void what_if_pass(const FormatCodes& f, const typename V::Code* codes, std::size_t units, const BlockCounts& counts,
                  std::int64_t finite, std::int64_t subnormal, Totals& totals) {
  std::uint64_t open_limits[kWhatIfThresholds];
  int open[kWhatIfThresholds];
  int number = 0;
  for (int i = 0; i < kWhatIfThresholds; ++i) {
    const std::uint64_t limit = f.thresholds[i];
    if (limit <= counts.min_nonzero) {
      totals.below[i] += counts.zero;
    } else if (limit > counts.largest()) {
      totals.below[i] += finite;
    } else if (limit == f.min_normal) {
      totals.below[i] += counts.zero + subnormal;
    } else {
      open_limits[number] = limit;
      open[number++] = i;
    }
  }
  std::int64_t below[kWhatIfThresholds];
  count_below<V>(codes, units, open_limits, below, number);
  for (int i = 0; i < number; ++i) totals.below[open[i]] += below[i];
}

// Counts, for each bit position of a lane, the vectors' lanes that have the bit: bit-sliced counters, plane j
// holding bit j of every counter. Sixteen vectors are added in a tree of full adders, so that most of the work is
// done in the low planes.
template <class V>
class BitCounter {
 public:
  using Bits = typename V::Bits;
  // Enough for the number of vectors in a block.
  static constexpr int kPlanes = 1 + __builtin_ctzll(kBlockBytes / sizeof(typename V::Code) / V::kWidth * V::kOneHots);

  BitCounter() {
    for (int i = 0; i < kPlanes; ++i) planes_[i] = V::bits_zero();
  }
  void add16(const Bits* x) {
    Bits twos[2];
    Bits fours[2];
    Bits eights[2];
    for (int e = 0; e < 2; ++e) {
      for (int f = 0; f < 2; ++f) {
        const Bits* at = x + 8 * e + 4 * f;
        twos[0] = V::full_add(planes_[0], at[0], at[1]);
        twos[1] = V::full_add(planes_[0], at[2], at[3]);
        fours[f] = V::full_add(planes_[1], twos[0], twos[1]);
      }
      eights[e] = V::full_add(planes_[2], fours[0], fours[1]);
    }
    carry(V::full_add(planes_[3], eights[0], eights[1]), 4);
  }
  void add(Bits x) { carry(x, 0); }

  std::int64_t count(int bit) const {
    std::int64_t sum = 0;
    for (int i = 0; i < kPlanes; ++i) sum += std::int64_t{V::count_bit(planes_[i], bit)} << i;
    return sum;
  }

 private:
  void carry(Bits x, int from) {
    for (int i = from; i < kPlanes; ++i) x = V::half_add(planes_[i], x);
  }
  Bits planes_[kPlanes];
};

// The pass of level kHistogram for normal numbers. An exponent becomes a single bit in a lane, V::kWindow binades
// at a time from the block's largest down; what is outside the window becomes no bit at all. Real tensors fit in
// one window; 16- and 32-bit formats never need more than eight.
template <class V>
void binade_pass(const FormatCodes& f, const typename V::Code* codes, std::size_t units, Prefetcher prefetch, int top,
                 int bottom, std::int64_t* binades) {
  using Bits = typename V::Bits;
  constexpr int kUnitVectors = kVectors<V> * V::kOneHots;
  static_assert(16 % kUnitVectors == 0);
  for (; top >= bottom; top -= V::kWindow) {
    BitCounter<V> counter;
    Bits group[16];
    int filled = 0;
    for_each_unit<V>(codes, units, prefetch, [&](const typename V::Code* at) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors<V>; ++i) {
        V::one_hots(V::load(at + i * V::kWidth), top, group + filled + i * V::kOneHots);
      }
      filled += kUnitVectors;
      if (filled == 16) counter.add16(group), filled = 0;
    });
    for (int i = 0; i < filled; ++i) counter.add(group[i]);
    for (int bit = 0; bit < V::kWindow && top - bit >= bottom; ++bit) {
      binades[top - bit - 1 + f.mantissa_bits] += counter.count(bit);
    }
    prefetch = Prefetcher();
  }
}

// The same, one after the other: for fp64 data that would need too many windows.
template <class V>
void binade_pass_scalar(const FormatCodes& f, const typename V::Code* codes, std::size_t units, std::int64_t* binades) {
  for (std::size_t i = 0; i < units * kSumLanes; ++i) {
    typename V::Code code = 0;
    __builtin_memcpy(&code, codes + i, sizeof code);
    const std::uint64_t magnitude = code & ~f.sign;
    if (magnitude >= f.min_normal && magnitude < f.first_nonfinite) ++binades[f.binade(magnitude)];
  }
}

// Subnormals have no exponent field of their own, so each of their few binades is counted by its limits.
template <class V>
void subnormal_pass(const FormatCodes& f, const typename V::Code* codes, std::size_t units, const BlockCounts& counts,
                    std::int64_t subnormal, std::int64_t* binades) {
  const int lowest = f.binade(counts.min_nonzero);
  std::uint64_t limits[64] = {};
  std::int64_t below[64];
  const int number = f.mantissa_bits - 1 - lowest;  // limits strictly inside the range
  for (int i = 0; i < number; ++i) limits[i] = std::uint64_t{1} << (lowest + 1 + i);
  count_below<V>(codes, units, limits, below, number);
  std::int64_t previous = counts.zero;
  for (int i = 0; i < number; ++i) {
    binades[lowest + i] += below[i] - previous;
    previous = below[i];
  }
  binades[f.mantissa_bits - 1] += counts.zero + subnormal - previous;
}

// The pages of the next block that each pass prefetches, up to this one: about as the passes' running times.
struct Pages {
  int count, sum, histogram;
};
constexpr Pages pages_of(StatsLevel level) {
  switch (level) {
    case StatsLevel::kSums:
    case StatsLevel::kWhatIf:
      return {2, 8, 8};
    case StatsLevel::kHistogram:
      return {1, 5, 8};
    default:
      return {8, 8, 8};
  }
}

template <class V>
void scan_block(const Block& block, StatsLevel level, Totals& totals) {
  using Code = typename V::Code;
  const FormatCodes& f = format_codes(V::kDType);
  const auto* codes = static_cast<const Code*>(block.data);
  const std::size_t units = block.count / kSumLanes;
  const auto count = static_cast<std::int64_t>(units * kSumLanes);
  const Pages pages = pages_of(level);

  if (units > 0) {
    BlockCounts counts = count_pass<V>(codes, units, Prefetcher(block, 0, pages.count));
    const bool all_finite = counts.max_positive < static_cast<std::int64_t>(f.first_nonfinite) &&
                            counts.max_negative < static_cast<std::int64_t>(f.first_nonfinite);
    if (!all_finite) counts = count_nonfinite<V>(f, codes, units);
    const std::int64_t finite = count - counts.nan - counts.pos_inf - counts.neg_inf;
    std::int64_t subnormal = 0;
    if (counts.min_nonzero < f.min_normal) {
      count_below<V>(codes, units, &f.min_normal, &subnormal, 1);
      subnormal -= counts.zero;
    }
    totals.nan += counts.nan;
    totals.pos_inf += counts.pos_inf;
    totals.neg_inf += counts.neg_inf;
    totals.zero += counts.zero;
    totals.subnormal += subnormal;
    if (counts.max_positive > totals.max_positive) totals.max_positive = counts.max_positive;
    if (counts.max_negative > totals.max_negative) totals.max_negative = counts.max_negative;
    if (counts.min_nonzero < totals.min_nonzero) totals.min_nonzero = counts.min_nonzero;

    if (level >= StatsLevel::kSums) {
      if (all_finite) {
        sum_pass<V, true>(codes, units, Prefetcher(block, pages.count, pages.sum), totals);
      } else {
        sum_pass<V, false>(codes, units, Prefetcher(block, pages.count, pages.sum), totals);
      }
    }
    if (level >= StatsLevel::kWhatIf) {
      what_if_pass<V>(f, codes, units, counts, finite, subnormal, totals);
    }
    if (level >= StatsLevel::kHistogram && finite > counts.zero) {
      const int top = static_cast<int>(counts.largest() >> f.mantissa_bits);
      const int least = static_cast<int>(counts.min_nonzero >> f.mantissa_bits);
      const int bottom = least > 1 ? least : 1;
      if (top - bottom >= 8 * V::kWindow) {
        binade_pass_scalar<V>(f, codes, units, totals.binades);
      } else {
        binade_pass<V>(f, codes, units, Prefetcher(block, pages.sum, pages.histogram), top, bottom, totals.binades);
      }
      if (subnormal > 0) subnormal_pass<V>(f, codes, units, counts, subnormal, totals.binades);
    }
  }
  if (units * kSumLanes < block.count) scan_scalar(V::kDType, block, units * kSumLanes, level, totals);
}

template <class V>
bool block_has_nonfinite(const Block& block) {
  using Code = typename V::Code;
  using Vec = typename V::Vec;
  constexpr std::size_t kGroup = Prefetcher::kPages * 64 / sizeof(Code);  // elements
  const FormatCodes& f = format_codes(V::kDType);
  const auto* codes = static_cast<const Code*>(block.data);
  Prefetcher prefetch(block, 0, Prefetcher::kPages);
  Vec largest = V::zero();
  std::size_t done = 0;
  for (; done + kGroup <= block.count; done += kGroup) {
    prefetch.step();
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kGroup; i += V::kWidth) {
      largest = V::max_unsigned(largest, V::magnitude(V::load(codes + done + i)));
    }
  }
  for (; done + V::kWidth <= block.count; done += V::kWidth) {
    largest = V::max_unsigned(largest, V::magnitude(V::load(codes + done)));
  }
  alignas(64) Code lanes[V::kWidth];
  V::store(lanes, largest);
  for (const Code lane : lanes) {
    if (lane >= f.first_nonfinite) return true;
  }
  return first_nonfinite(V::kDType, block, done) >= 0;
}

template <class V>
constexpr StatsKernel kKernel = {block_has_nonfinite<V>, scan_block<V>};

// One-byte formats: counting the 256 codes is hard to beat, only the first level is worth vectors.
template <class V>
constexpr StatsKernel kByteKernel = {block_has_nonfinite<V>, [](const Block& block, StatsLevel level, Totals& totals) {
                                       scan_scalar(V::kDType, block, 0, level, totals);
                                     }};

}  // namespace
}  // namespace nanhunt::kernels
