// SPDX-License-Identifier: Apache-2.0
// Elementwise ops, copies, and gradients summed over the dimensions that were broadcast (lanes.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/portable/arrays.h"
#include "kernels/portable/formulas.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/lanes.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

// A formula of a call as the struct that it is.
template <class F>
NANHUNT_HOST_DEVICE inline F formula_of(const FormulaCall& call) {
  static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof(call.scalars));
  F formula{};
  if constexpr (!std::is_empty_v<F>) memcpy(&formula, call.scalars, sizeof(F));
  return formula;
}

// Of the inputs those that the formula takes.
template <class F, class T>
NANHUNT_HOST_DEVICE inline T value_of(const FormulaCall& call, T x, T y, T z) {
  const F f = formula_of<F>(call);
  if constexpr (F::kInputs == 1) {
    return f(x);
  } else if constexpr (F::kInputs == 2) {
    return f(x, y);
  } else {
    static_assert(F::kInputs == 3);
    return f(x, y, z);
  }
}

// The call's formula is found by its number, which is the same in every thread.
template <class T, class... F>
NANHUNT_HOST_DEVICE inline T value_of(const FormulaCall& call, T x, T y, T z, Formulas<F...>) {
  T value{0};
  int number = 0;
  static_cast<void>(((number++ == call.number && (value = value_of<F, T>(call, x, y, z), true)) || ...));
  return value;
}
inline bool is_known(const FormulaCall& call) { return call.number >= 0 && call.number < AllFormulas::kCount; }

// All formulas in one kernel: what differs is a few instructions of arithmetic, what is the same is the rest.
template <class T>
struct MapKernel {
  MapCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.walk.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place place = place_of(call.walk, i);
    T x[3] = {};
    for (int k = 0; k < call.inputs; ++k) x[k] = load_as_common<T>(call.in[k], call.common, place);
    store(call.out, place, value_of<T>(call.formula, x[0], x[1], x[2], AllFormulas{}));
  }
};

template <class Word>
struct CopyKernel {
  CopyCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.walk.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place place = place_of(call.walk, i);
    static_cast<Word*>(call.to.data)[offset_in(call.to, place)] =
        static_cast<const Word*>(call.from.data)[offset_in(call.from, place)];
  }
};

// One result each; the values are in[0] of the call's map, whatever its formula. Positions are visited in ascending
// order; those that lie in a row are summed by lanes as the CPU engine does it: a run ends where a row ends or a chunk
// of kSumBlock positions does.
template <class T>
struct GradientSumKernel {
  GradientSumCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.results; }

  NANHUNT_HOST_DEVICE void operator()(std::int64_t result) const {
    const int last = call.dims - 1;
    std::int64_t step[kMaxWalkDims];  // positions from one index of a dimension to the next
    std::int64_t next = 1;
    for (int d = last; d >= 0; --d) {
      step[d] = next;
      next *= call.sizes[d];
    }
    // Where the result's own coordinates put it. Strides of out fall from left to right, for it has no gaps.
    std::int64_t base = 0, rest = result, repeats = 1;
    for (int d = 0; d <= last; ++d) {
      if (call.to[d] == 0) {
        if (d != last) repeats *= call.sizes[d];
        continue;
      }
      base += rest / call.to[d] * step[d];
      rest %= call.to[d];
    }
    const std::int64_t run = call.to[last] == 0 ? call.sizes[last] : 1;
    T sum{0};
    for (std::int64_t r = 0; r < repeats; ++r) {
      std::int64_t position = base, left = r;
      for (int d = last - 1; d >= 0; --d) {
        if (call.to[d] != 0) continue;
        position += left % call.sizes[d] * step[d];
        left /= call.sizes[d];
      }
      if (call.to[last] != 0) {
        sum += value(position);
        continue;
      }
      for (std::int64_t done = 0; done < run;) {
        const std::int64_t to_end_of_chunk = kSumBlock - (position + done) % kSumBlock;
        const std::int64_t length = run - done < to_end_of_chunk ? run - done : to_end_of_chunk;
        sum += run_sum(position + done, length);
        done += length;
      }
    }
    store_flat(call.out, result, static_cast<T>(rounded_to_16_bits(call.via, sum)));
  }

 private:
  NANHUNT_HOST_DEVICE T value(std::int64_t position) const {
    return load_as_common<T>(call.map.in[0], call.map.common, place_of(call.map.walk, position));
  }
  NANHUNT_HOST_DEVICE T run_sum(std::int64_t start, std::int64_t length) const {
    T lanes[kLanes] = {};
    for (std::int64_t i = 0; i < length; ++i) lanes[i % kLanes] += value(start + i);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
    }
    return lanes[0];
  }
};

// A sum of anything but the values themselves: these go to `values` (op math, one for each position) first.
struct GradientSumSteps {
  MapCall map;
  GradientSumCall sum;
};
inline bool sums_values_as_they_are(const GradientSumCall& call) {
  return call.map.formula.number == formula_number<Identity>();
}
inline GradientSumSteps steps_of(const GradientSumCall& call, void* values) {
  DeviceArray array;
  array.data = values;
  array.dtype = call.map.wide ? DType::kF64 : DType::kF32;
  std::int64_t next = 1;
  for (int d = call.map.walk.dims - 1; d >= 0; --d) {
    array.strides[d] = next;
    next *= call.map.walk.sizes[d];
  }
  GradientSumSteps steps{call.map, call};
  steps.map.out = array;
  steps.sum.map.in[0] = array;
  steps.sum.map.common = array.dtype;
  return steps;
}

}  // namespace nanhunt::kernels::cuda
