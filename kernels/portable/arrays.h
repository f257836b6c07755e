// SPDX-License-Identifier: Apache-2.0
// Where the elements of a call's arrays lie, and reading and writing them.
#pragma once

#include <cstdint>

#include "kernels/portable/formats.h"
#include "kernels/portable/host_device.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

// Row-major coordinates of a position; those past `dims` are not set. Loops over them have constant bounds: an index
// that is not constant would move the coordinates from registers to memory.
struct Place {
  std::int64_t at[kMaxWalkDims];
  int dims;
};

template <class Position>
NANHUNT_HOST_DEVICE NANHUNT_ONCE Place place_by_division(const Walk& walk, Position position) {
  Place place;
  place.dims = walk.dims;
  NANHUNT_UNROLL
  for (int d = kMaxWalkDims - 1; d > 0; --d) {
    if (d >= walk.dims) continue;
    const auto size = static_cast<Position>(walk.sizes[d]);
    place.at[d] = static_cast<std::int64_t>(position % size);
    position /= size;
  }
  place.at[0] = static_cast<std::int64_t>(position);
  return place;
}

// 32-bit division where it will do is several times faster on a device.
NANHUNT_HOST_DEVICE inline Place place_of(const Walk& walk, std::int64_t position) {
  if (walk.count <= INT32_MAX) return place_by_division(walk, static_cast<std::uint32_t>(position));
  return place_by_division(walk, static_cast<std::uint64_t>(position));
}

NANHUNT_HOST_DEVICE inline std::int64_t offset_in(const DeviceArray& array, const Place& place) {
  std::int64_t offset = place.at[0] * array.strides[0];
  NANHUNT_UNROLL
  for (int d = 1; d < kMaxWalkDims; ++d) {
    if (d < place.dims) offset += place.at[d] * array.strides[d];
  }
  return offset;
}

template <class T>
NANHUNT_HOST_DEVICE inline T load_at(const DeviceArray& array, std::int64_t offset) {
  if (array.is_number) return static_cast<T>(array.number);
  return load_element<T>(array.dtype, array.data, offset);
}
template <class T>
NANHUNT_HOST_DEVICE inline T load(const DeviceArray& array, const Place& place) {
  return load_at<T>(array, offset_in(array, place));
}
template <class T>
NANHUNT_HOST_DEVICE inline T load(const DeviceArray& array, const Walk& walk, std::int64_t position) {
  return load<T>(array, place_of(walk, position));
}
template <class T>
NANHUNT_HOST_DEVICE inline void store(const DeviceArray& array, const Place& place, T value) {
  store_element(array.dtype, array.data, offset_in(array, place), value);
}
template <class T>
NANHUNT_HOST_DEVICE inline void store(const DeviceArray& array, const Walk& walk, std::int64_t position, T value) {
  store(array, place_of(walk, position), value);
}
// Of an array without gaps.
template <class T>
NANHUNT_HOST_DEVICE inline T load_flat(const DeviceArray& array, std::int64_t index) {
  return load_element<T>(array.dtype, array.data, index);
}
template <class T>
NANHUNT_HOST_DEVICE inline void store_flat(const DeviceArray& array, std::int64_t index, T value) {
  store_element(array.dtype, array.data, index, value);
}

// Operands of another format are rounded to a common one of 16 bits before an op, as eager frameworks promote.
NANHUNT_HOST_DEVICE inline bool is_rounded_to(DType common, DType dtype) {
  return (common == DType::kF16 || common == DType::kBF16) && dtype != common && dtype != DType::kBool;
}
template <class T>
NANHUNT_HOST_DEVICE inline T load_as_common(const DeviceArray& array, DType common, std::int64_t offset) {
  if (!is_rounded_to(common, array.dtype)) return load_at<T>(array, offset);
  return static_cast<T>(rounded_to_16_bits(common, load_at<double>(array, offset)));
}
template <class T>
NANHUNT_HOST_DEVICE inline T load_as_common(const DeviceArray& array, DType common, const Place& place) {
  return load_as_common<T>(array, common, offset_in(array, place));
}

}  // namespace nanhunt::kernels::cuda
