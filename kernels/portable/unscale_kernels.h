// SPDX-License-Identifier: Apache-2.0
// The scaler's check and unscale of many tensors by one launch: their table goes by value with it. Rows of the kernel
// are pieces of the tensors, one after the other (lanes.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/lanes.h"
#include "kernels/device_ops.h"
#include "kernels/device_stats.h"

namespace nanhunt::kernels::cuda {

// `x` unscaled; 1 stores what was there. fp64 is tested as CUDA's frameworks test it, in fp32.
template <class T>
NANHUNT_HOST_DEVICE inline T unscaled(T x, float inv_scale, bool& found) {
  const std::uint32_t bits = bits_as<std::uint32_t>(static_cast<float>(x));
  found = found || (bits & 0x7f800000u) == 0x7f800000u;
  return inv_scale == 1 ? x : x * static_cast<T>(inv_scale);
}

// elements; a multiple of four, so that pieces keep their alignment
inline constexpr std::int64_t kUnscalePiece = 2048;

struct UnscaleEntry {
  void* data;
  std::int64_t count;
  std::uint32_t first_row;
  DType dtype;
};

inline constexpr int kTensorsUnscaled = 168;  // of one launch

struct UnscaleManyKernel {
  float inv_scale = 1;
  std::uint32_t tensors = 0, rows = 0;
  std::int32_t* found = nullptr;
  UnscaleEntry entries[kTensorsUnscaled];
  NANHUNT_HOST_DEVICE std::int64_t count() const { return rows; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    const UnscaleEntry& entry = entry_of(static_cast<std::uint32_t>(row));
    const std::int64_t start = (row - entry.first_row) * kUnscalePiece, rest = entry.count - start;
    const std::int64_t length = rest < kUnscalePiece ? rest : kUnscalePiece;
    if (entry.dtype == DType::kF64) return unscale_each<double>(lanes, entry, start, length);
    const bool aligned = reinterpret_cast<std::uintptr_t>(entry.data) % alignof(Four) == 0;
    if (entry.dtype != DType::kF32 || !aligned) return unscale_each<float>(lanes, entry, start, length);
    const std::int64_t fours = length / 4;
    unscale_fours(lanes, static_cast<Four*>(entry.data) + start / 4, fours);
    unscale_each<float>(lanes, entry, start + fours * 4, length - fours * 4);
  }

 private:
  struct alignas(16) Four {
    float lane[4];
  };

  NANHUNT_HOST_DEVICE const UnscaleEntry& entry_of(std::uint32_t row) const {
    std::uint32_t low = 0, high = tensors - 1;  // the last one that begins at `row` or before
    while (low < high) {
      const std::uint32_t middle = (low + high + 1) / 2;
      if (entries[middle].first_row <= row) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return entries[low];
  }
  template <class T, class Lanes>
  NANHUNT_HOST_DEVICE void unscale_each(const Lanes& lanes, const UnscaleEntry& entry, std::int64_t start,
                                        std::int64_t length) const {
    lanes.each(length, [&](std::int64_t i) {
      bool bad = false;
      const T x = load_element<T>(entry.dtype, entry.data, start + i);
      store_element(entry.dtype, entry.data, start + i, unscaled(x, inv_scale, bad));
      if (bad) *found = 1;  // all that write it write the same
    });
  }
  template <class Lanes>
  NANHUNT_HOST_DEVICE void unscale_fours(const Lanes& lanes, Four* fours, std::int64_t count) const {
    lanes.each(count, [&](std::int64_t i) {
      bool bad = false;
      Four four = fours[i];
      for (float& x : four.lane) x = unscaled(x, inv_scale, bad);
      fours[i] = four;
      if (bad) *found = 1;
    });
  }
};
static_assert(sizeof(UnscaleManyKernel) <= kParameterBytes);

// Calls launch(kernel) with as many tensors at a time as a kernel takes.
template <class Launch>
void launch_unscale(const UnscaleManyCall& call, const Launch& launch) {
  constexpr std::int64_t kMaxRows = INT32_MAX;  // far beyond any device's memory, yet nothing may wrap
  UnscaleManyKernel kernel;
  kernel.inv_scale = call.inv_scale;
  kernel.found = call.found;
  const auto flush = [&] {
    if (kernel.rows != 0) launch(kernel);
    kernel.tensors = kernel.rows = 0;
  };
  for (std::int64_t t = 0; t < call.count; ++t) {
    const UnscaledTensor& tensor = call.tensors[t];
    if (tensor.count == 0) continue;
    const std::int64_t rows = (tensor.count + kUnscalePiece - 1) / kUnscalePiece;
    if (kernel.tensors == kTensorsUnscaled || kernel.rows + rows > kMaxRows) flush();
    kernel.entries[kernel.tensors++] = {tensor.data, tensor.count, kernel.rows, tensor.dtype};
    kernel.rows += static_cast<std::uint32_t>(rows);
  }
  flush();
}

}  // namespace nanhunt::kernels::cuda
