// SPDX-License-Identifier: Apache-2.0
// Whether numbers are finite, by their bits: a NaN or an infinity has all bits of its exponent set. One pass over the
// memory, and a second one only where something was found.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
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

template <typename Unsigned>
[[gnu::always_inline]] inline bool any_at(const char* data, std::size_t count, Unsigned exponent) {
  typedef Unsigned Lanes __attribute__((vector_size(kLanes)));
  constexpr std::size_t kEach = kLanes / sizeof(Unsigned);
  const Lanes wanted = Lanes{} + exponent;
  Lanes found{}, also{};
  std::size_t i = 0;
  for (; i + 2 * kEach <= count; i += 2 * kEach) {
    Lanes a, b;
    std::memcpy(&a, data + i * sizeof(Unsigned), kLanes);
    std::memcpy(&b, data + (i + kEach) * sizeof(Unsigned), kLanes);
    found |= reinterpret_cast<Lanes>((a & wanted) == wanted);
    also |= reinterpret_cast<Lanes>((b & wanted) == wanted);
  }
  found |= also;
  bool any = false;
  for (std::size_t lane = 0; lane < kEach; ++lane) any = any || found[lane] != 0;
  for (; i < count; ++i) {
    Unsigned bits;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    any = any || (bits & exponent) == exponent;
  }
  return any;
}

[[gnu::always_inline]] inline bool any_by(const char* data, std::size_t count, const Format& format) {
  switch (format.bytes) {
    case 1: return any_at<std::uint8_t>(data, count, static_cast<std::uint8_t>(format.exponent));
    case 2: return any_at<std::uint16_t>(data, count, static_cast<std::uint16_t>(format.exponent));
    case 4: return any_at<std::uint32_t>(data, count, static_cast<std::uint32_t>(format.exponent));
    default: return any_at<std::uint64_t>(data, count, format.exponent);
  }
}

inline bool any_plain(const char* data, std::size_t count, const Format& format) { return any_by(data, count, format); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline bool any_avx2(const char* data, std::size_t count, const Format& format) {
  return any_by(data, count, format);
}
[[gnu::target("avx512f,avx512bw")]] inline bool any_avx512(const char* data, std::size_t count, const Format& format) {
  return any_by(data, count, format);
}
#endif

using Any = bool (*)(const char* data, std::size_t count, const Format& format);
inline Any best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return &any_avx512;
  if (__builtin_cpu_supports("avx2")) return &any_avx2;
#endif
  return &any_plain;
}
inline const Any g_any = best();

// Of numbers that follow each other.
inline std::uint8_t bits_at(const char* data, std::size_t count, const Format& format) {
  if (!g_any(data, count, format)) return 0;
  std::uint8_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, data + i * format.bytes, format.bytes);  // little-endian, as everything that PyTorch runs on
    if ((bits & format.exponent) != format.exponent) continue;
    found |= format.exponent == format.magnitude || (bits & format.magnitude) > format.exponent ? kNan : kInf;
    if (found == (kNan | kInf)) break;
  }
  return found;
}

// Of a view with gaps: runs of its last dimension, or single elements.
inline std::uint8_t bits_of_view(const at::Tensor& t, const char* data, const Format& format) {
  const auto sizes = t.sizes(), strides = t.strides();
  const std::size_t size = format.bytes * format.parts;
  std::size_t dims = sizes.size(), run = 1;
  if (dims > 0 && strides[dims - 1] == 1) run = static_cast<std::size_t>(sizes[--dims]);
  constexpr std::size_t kMaxDims = 32;
  if (dims > kMaxDims) return kNan | kInf;  // not known to be finite
  std::array<std::int64_t, kMaxDims> at{};
  std::int64_t offset = 0;
  std::uint8_t found = 0;
  for (;;) {
    found |= bits_at(data + offset * static_cast<std::int64_t>(size), run * format.parts, format);
    std::size_t d = dims;
    for (; d > 0; --d) {
      if (strides[d - 1] == 0) continue;  // what was expanded is there once
      offset += strides[d - 1];
      if (++at[d - 1] < sizes[d - 1]) break;
      offset -= at[d - 1] * strides[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return found;
  }
}

}  // namespace detail

// Whether all of the memory of its storage is seen through it.
inline bool covers(const at::Tensor& t) {
  return t.storage_offset() == 0 && static_cast<std::size_t>(t.numel()) * t.itemsize() >= t.storage().nbytes() &&
         t.is_non_overlapping_and_dense();
}

// kNan, kInf; 0: all numbers are finite. nullopt: it cannot be looked at here. Its memory is there.
inline std::optional<std::uint8_t> bits_of(const at::Tensor& t) {
  if (!t.device().is_cpu()) return std::nullopt;
  const std::optional<Format> format = format_of(t.scalar_type());
  if (!format) return c10::isIntegralType(t.scalar_type(), true) ? std::optional<std::uint8_t>(0) : std::nullopt;
  if (t.numel() == 0) return std::uint8_t{0};
  const char* data = static_cast<const char*>(t.storage().unsafeGetStorageImpl()->data());
  if (data == nullptr) return std::nullopt;
  data += t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
  if (t.is_non_overlapping_and_dense())
    return detail::bits_at(data, static_cast<std::size_t>(t.numel()) * format->parts, *format);
  return detail::bits_of_view(t, data, *format);
}

}  // namespace nanhunt::tap::finite
