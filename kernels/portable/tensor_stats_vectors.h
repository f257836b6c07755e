// SPDX-License-Identifier: Apache-2.0
// Tensors as vectors of 16 bytes. Vector j holds the elements [j * E, (j + 1) * E) of the walk at every alignment and
// for every stride, so that which thread meets which element depends on nothing but the tensor's size.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"
#include "kernels/device_stats.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kVectorBytes = 16;

struct alignas(16) Vector {
  std::uint32_t words[4];
};

// `at` is a multiple of 16. Read once, so it need not stay in the first cache; in the second it may be wanted next.
NANHUNT_HOST_DEVICE inline Vector load_aligned(std::uint64_t at) {
  Vector v;
#if NANHUNT_ON_DEVICE
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(at));
#else
  memcpy(&v, reinterpret_cast<const void*>(at), sizeof v);
#endif
  return v;
}

NANHUNT_HOST_DEVICE inline void set_byte(Vector& v, std::uint32_t i, std::uint8_t byte) {
  NANHUNT_UNROLL
  for (std::uint32_t w = 0; w < 4; ++w) {  // no index that is not constant: it would move the vector to memory
    if (i / 4 == w) v.words[w] |= static_cast<std::uint32_t>(byte) << 8 * (i % 4);
  }
}

// Byte by byte: the ends of tensors, and elements off their own alignment. What is not there is 0.
NANHUNT_HOST_DEVICE NANHUNT_RARE inline Vector load_bytes(std::uint64_t at, std::uint32_t bytes) {
  Vector v = {};
  for (std::uint32_t i = 0; i < bytes; ++i) set_byte(v, i, *reinterpret_cast<const std::uint8_t*>(at + i));
  return v;
}

// Two aligned loads and a shift. Reads nothing outside [begin, end): near the ends it goes byte by byte.
NANHUNT_HOST_DEVICE inline Vector load_unaligned(std::uint64_t at, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t below = at & ~std::uint64_t{kVectorBytes - 1};
  if (below == at) return load_aligned(at);
  if (below < begin || below + 2 * kVectorBytes > end) return load_bytes(at, kVectorBytes);
  const Vector first = load_aligned(below);
  const Vector second = load_aligned(below + kVectorBytes);
  const auto joined = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  std::uint64_t a = joined(first.words[0], first.words[1]);
  std::uint64_t b = joined(first.words[2], first.words[3]);
  std::uint64_t c = joined(second.words[0], second.words[1]);
  const auto bytes = static_cast<std::uint32_t>(at - below);
  if (bytes >= 8) {
    a = b;
    b = c;
    c = joined(second.words[2], second.words[3]);
  }
  const std::uint32_t bits = 8 * (bytes % 8);
  if (bits != 0) {
    a = a >> bits | b << (64 - bits);
    b = b >> bits | c << (64 - bits);
  }
  return {{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(b >> 32)}};
}

// Coordinates of element i of the walk; `visit(dimension, coordinate)`.
template <class Visit>
NANHUNT_HOST_DEVICE inline void for_each_coordinate(const DeviceStatsView& view, std::uint64_t i, Visit visit) {
  for (int d = view.dims; d-- > 0;) {
    const std::uint64_t size = view.dim[d].size;
    std::uint64_t coordinate = 0;
    if (i >> 32 == 0 && size >> 32 == 0) {  // divisions of 64 bits are slow
      coordinate = static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(size);
      i = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(size);
    } else {
      coordinate = i % size;
      i /= size;
    }
    visit(view.dim[d], coordinate);
  }
}

NANHUNT_HOST_DEVICE inline std::uint64_t address_of(const DeviceStatsView& view, std::uint32_t bytes, std::uint64_t i) {
  if (view.gapless) return view.data + i * bytes;
  std::int64_t offset = 0;
  for_each_coordinate(view, i, [&](const DeviceStatsView::Dim& dim, std::uint64_t coordinate) {
    offset += static_cast<std::int64_t>(coordinate) * dim.stride_bytes;
  });
  return view.data + static_cast<std::uint64_t>(offset);
}

NANHUNT_HOST_DEVICE inline std::uint64_t logical_of(const DeviceStatsView& view, std::uint64_t i) {
  if (view.dims == 0) return i;
  std::int64_t logical = view.logical_base;
  for_each_coordinate(view, i, [&](const DeviceStatsView::Dim& dim, std::uint64_t coordinate) {
    logical += static_cast<std::int64_t>(coordinate) * dim.logical_stride;
  });
  return static_cast<std::uint64_t>(logical);
}

NANHUNT_HOST_DEVICE inline std::uint64_t load_element(std::uint64_t at, std::uint32_t bytes) {
  if (at % bytes == 0) {
    if (bytes == 2) return *reinterpret_cast<const std::uint16_t*>(at);
    if (bytes == 4) return *reinterpret_cast<const std::uint32_t*>(at);
    if (bytes == 8) return *reinterpret_cast<const std::uint64_t*>(at);
  }
  std::uint64_t code = 0;
  for (std::uint32_t b = 0; b < bytes; ++b) {
    code |= std::uint64_t{*reinterpret_cast<const std::uint8_t*>(at + b)} << 8 * b;
  }
  return code;
}

// `count` elements from `first` on, a row at a time.
NANHUNT_HOST_DEVICE NANHUNT_RARE inline Vector gather(const DeviceStatsView& view, std::uint32_t bytes,
                                                      std::uint64_t first, std::uint32_t count) {
  const DeviceStatsView::Dim& inner = view.dim[view.dims - 1];
  std::uint64_t halves[2] = {0, 0};
  std::uint32_t done = 0;
  while (done < count) {
    const std::uint64_t at = address_of(view, bytes, first + done);
    const std::uint64_t column = (first + done) % inner.size;
    const std::uint64_t left = inner.size - column;
    const std::uint32_t run = left < count - done ? static_cast<std::uint32_t>(left) : count - done;
    if (run * bytes == kVectorBytes && inner.stride_bytes == static_cast<std::int64_t>(bytes)) {
      const std::uint64_t row = at - column * bytes;
      return load_unaligned(at, row, row + inner.size * bytes);
    }
    for (std::uint32_t k = 0; k < run; ++k) {
      const std::uint64_t code = load_element(at + k * static_cast<std::uint64_t>(inner.stride_bytes), bytes);
      const std::uint32_t bit = 8 * bytes * (done + k);
      (bit < 64 ? halves[0] : halves[1]) |= code << bit % 64;
    }
    done += run;
  }
  return {{static_cast<std::uint32_t>(halves[0]), static_cast<std::uint32_t>(halves[0] >> 32),
           static_cast<std::uint32_t>(halves[1]), static_cast<std::uint32_t>(halves[1] >> 32)}};
}

// Vector j; `valid` of its elements are there, the rest of it is 0.
NANHUNT_HOST_DEVICE inline Vector load_vector(const DeviceStatsView& view, std::uint32_t bytes, std::uint64_t j,
                                              std::uint32_t& valid) {
  const std::uint32_t lanes = kVectorBytes / bytes;
  const std::uint64_t first = j * lanes;
  const std::uint64_t left = view.count - first;
  valid = left < lanes ? static_cast<std::uint32_t>(left) : lanes;
  if (!view.gapless) return gather(view, bytes, first, valid);
  const std::uint64_t at = view.data + j * kVectorBytes;
  if (valid < lanes) return load_bytes(at, valid * bytes);
  return load_unaligned(at, view.data, view.data + view.count * bytes);
}

}  // namespace nanhunt::kernels::cuda
