// SPDX-License-Identifier: Apache-2.0
// Whether numbers are finite, by their bits: a NaN or an infinity has all bits of its exponent set, so it is larger than
// any number, if bits are compared. One pass over the memory, and a second one only where something was found.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

namespace nanhunt::tap::finite {

inline constexpr std::uint8_t kNan = 1, kInf = 2;

// A number's bits: its exponent, and all but its sign. In e4m3fn all of them set are a NaN, and there is no infinity.
struct Format {
  std::size_t bytes;
  std::uint64_t exponent, magnitude;
  std::size_t parts = 1;  // numbers of one element: 2 of a complex one
};

inline std::optional<Format> format_of(at::ScalarType type) {
  constexpr std::uint64_t kSingle = 0x7f800000u, kDouble = 0x7ff0000000000000u;
  switch (type) {
    case at::kFloat: return Format{4, kSingle, 0x7fffffffu};
    case at::kDouble: return Format{8, kDouble, 0x7fffffffffffffffu};
    case at::kHalf: return Format{2, 0x7c00u, 0x7fffu};
    case at::kBFloat16: return Format{2, 0x7f80u, 0x7fffu};
    case at::kFloat8_e4m3fn: return Format{1, 0x7fu, 0x7fu};
    case at::kFloat8_e5m2: return Format{1, 0x7cu, 0x7fu};
    case at::kComplexFloat: return Format{4, kSingle, 0x7fffffffu, 2};
    case at::kComplexDouble: return Format{8, kDouble, 0x7fffffffffffffffu, 2};
    default: return std::nullopt;
  }
}

// The largest finite number, as an order: what fits into one fits into those that come later. 0: whole numbers.
inline int reach_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat8_e4m3fn: return 1;
    case at::kFloat8_e5m2: return 2;
    case at::kHalf: return 3;
    case at::kBFloat16: return 4;
    case at::kFloat:
    case at::kComplexFloat: return 5;
    case at::kDouble:
    case at::kComplexDouble: return 6;
    default: return c10::isIntegralType(type, true) ? 0 : 7;
  }
}

// The same of what is read: a whole number fits into what its type's largest one fits into.
inline int width_of(at::ScalarType type) {
  if (const int reach = reach_of(type); reach > 0) return reach;
  if (type == at::kBool || type == at::kByte || type == at::kChar) return 1;
  return type == at::kShort ? 3 : 4;
}

namespace detail {

inline constexpr std::size_t kLanes = 64;  // bytes; the compiler makes of them what the processor has

// The largest bits of a magnitude: numbers are ordered as those are. Four lines of the cache in turn, and those that
// come half a page later are asked for.
template <typename Unsigned>
[[gnu::always_inline]] inline std::uint64_t largest_at(const char* data, std::size_t count, Unsigned magnitude) {
  typedef Unsigned Lanes __attribute__((vector_size(kLanes)));
  constexpr std::size_t kEach = kLanes / sizeof(Unsigned), kAhead = 2048;
  const Lanes mask = Lanes{} + magnitude;
  Lanes first{}, second{}, third{}, fourth{};
  std::size_t i = 0;
  for (; i + 4 * kEach <= count; i += 4 * kEach) {
    const char* const at = data + i * sizeof(Unsigned);
    for (std::size_t k = 0; k < 4; ++k) __builtin_prefetch(at + kAhead + k * kLanes);
    Lanes a, b, c, d;
    std::memcpy(&a, at, kLanes);
    std::memcpy(&b, at + kLanes, kLanes);
    std::memcpy(&c, at + 2 * kLanes, kLanes);
    std::memcpy(&d, at + 3 * kLanes, kLanes);
    a &= mask, b &= mask, c &= mask, d &= mask;
    first = a > first ? a : first;
    second = b > second ? b : second;
    third = c > third ? c : third;
    fourth = d > fourth ? d : fourth;
  }
  first = second > first ? second : first;
  third = fourth > third ? fourth : third;
  first = third > first ? third : first;
  Unsigned largest = 0;
  for (std::size_t lane = 0; lane < kEach; ++lane)
    if (first[lane] > largest) largest = first[lane];
  for (; i < count; ++i) {
    Unsigned bits;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    bits &= magnitude;
    if (bits > largest) largest = bits;
  }
  return largest;
}

[[gnu::always_inline]] inline std::uint64_t largest_by(const char* data, std::size_t count, const Format& format) {
  switch (format.bytes) {
    case 1: return largest_at<std::uint8_t>(data, count, static_cast<std::uint8_t>(format.magnitude));
    case 2: return largest_at<std::uint16_t>(data, count, static_cast<std::uint16_t>(format.magnitude));
    case 4: return largest_at<std::uint32_t>(data, count, static_cast<std::uint32_t>(format.magnitude));
    default: return largest_at<std::uint64_t>(data, count, format.magnitude);
  }
}

inline std::uint64_t largest_plain(const char* data, std::size_t count, const Format& format) {
  return largest_by(data, count, format);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline std::uint64_t largest_avx2(const char* data, std::size_t count, const Format& format) {
  return largest_by(data, count, format);
}
[[gnu::target("avx512f,avx512bw")]] inline std::uint64_t largest_avx512(const char* data, std::size_t count, const Format& format) {
  return largest_by(data, count, format);
}
#endif

using Largest = std::uint64_t (*)(const char* data, std::size_t count, const Format& format);
inline Largest best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return &largest_avx512;
  if (__builtin_cpu_supports("avx2")) return &largest_avx2;
#endif
  return &largest_plain;
}
inline const Largest g_largest = best();

// What numbers hold that was read so far.
struct Scan {
  std::uint8_t bits = 0;      // kNan, kInf
  std::uint64_t largest = 0;  // bits of a magnitude

  // Numbers that follow each other.
  void read(const char* data, std::size_t count, const Format& format) {
    const std::uint64_t its = g_largest(data, count, format);
    if (its > largest) largest = its;
    if (its < format.exponent) return;
    for (std::size_t i = 0; i < count && bits != (kNan | kInf); ++i) {
      std::uint64_t one = 0;
      std::memcpy(&one, data + i * format.bytes, format.bytes);  // little-endian, as everything that PyTorch runs on
      if ((one & format.exponent) != format.exponent) continue;
      bits |= format.exponent == format.magnitude || (one & format.magnitude) > format.exponent ? kNan : kInf;
    }
  }

  // A view with gaps: runs of its last dimension, or single elements.
  void read_view(const at::Tensor& t, const char* data, const Format& format) {
    const auto sizes = t.sizes(), strides = t.strides();
    const std::size_t size = format.bytes * format.parts;
    std::size_t dims = sizes.size(), run = 1;
    if (dims > 0 && strides[dims - 1] == 1) run = static_cast<std::size_t>(sizes[--dims]);
    constexpr std::size_t kMaxDims = 32;
    if (dims > kMaxDims) {
      bits = kNan | kInf;  // not known to be finite
      return;
    }
    std::array<std::int64_t, kMaxDims> at{};
    std::int64_t offset = 0;
    for (;;) {
      read(data + offset * static_cast<std::int64_t>(size), run * format.parts, format);
      std::size_t d = dims;
      for (; d > 0; --d) {
        if (strides[d - 1] == 0) continue;  // what was expanded is there once
        offset += strides[d - 1];
        if (++at[d - 1] < sizes[d - 1]) break;
        offset -= at[d - 1] * strides[d - 1];
        at[d - 1] = 0;
      }
      if (d == 0) return;
    }
  }
};

// The number with these bits, of a floating format of two bytes or more; -1: of another.
inline double number_of(std::uint64_t bits, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kComplexFloat: return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case at::kDouble:
    case at::kComplexDouble: return std::bit_cast<double>(bits);
    case at::kHalf: return static_cast<float>(c10::Half(static_cast<std::uint16_t>(bits), c10::Half::from_bits()));
    case at::kBFloat16: return static_cast<float>(c10::BFloat16(static_cast<std::uint16_t>(bits), c10::BFloat16::from_bits()));
    default: return -1;
  }
}

}  // namespace detail

// Whether all of the memory of its storage is seen through it.
inline bool covers(const at::Tensor& t) {
  return t.storage_offset() == 0 && static_cast<std::size_t>(t.numel()) * t.itemsize() >= t.storage().nbytes() &&
         t.is_non_overlapping_and_dense();
}

struct Found {
  std::uint8_t bits = 0;  // kNan, kInf; 0: all numbers are finite
  double amax = -1;       // the largest magnitude, where they are; -1: not known
};

// nullopt: it cannot be looked at here. Its memory is there.
inline std::optional<Found> look_at(const at::Tensor& t) {
  if (!t.device().is_cpu()) return std::nullopt;
  const at::ScalarType type = t.scalar_type();
  const std::optional<Format> format = format_of(type);
  if (!format) return c10::isIntegralType(type, true) ? std::optional<Found>(Found{}) : std::nullopt;
  if (t.numel() == 0) return Found{};
  const char* data = static_cast<const char*>(t.storage().unsafeGetStorageImpl()->data());
  if (data == nullptr) return std::nullopt;
  data += t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
  detail::Scan scan;
  if (t.is_non_overlapping_and_dense()) {
    scan.read(data, static_cast<std::size_t>(t.numel()) * format->parts, *format);
  } else {
    scan.read_view(t, data, *format);
  }
  return Found{scan.bits, scan.bits == 0 ? detail::number_of(scan.largest, type) : -1};
}
inline std::optional<std::uint8_t> bits_of(const at::Tensor& t) {
  const std::optional<Found> found = look_at(t);
  return found ? std::optional(found->bits) : std::nullopt;
}

}  // namespace nanhunt::tap::finite
