// SPDX-License-Identifier: Apache-2.0
// Elementwise ops over arrays whose elements lie one after the other (or are one number): a thread makes 16 bytes of
// the result from as wide loads, by the formulas and roundings of map_kernels.h, hence with its bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/portable/map_kernels.h"
#include "kernels/portable/tensor_stats_vectors.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

// Results of formats of 2 and 4 bytes, computed in fp32.
inline bool is_dense(const MapCall& call) {
  const auto is_aligned = [](const DeviceArray& array) {
    return reinterpret_cast<std::uintptr_t>(array.data) % kVectorBytes == 0;
  };
  const auto is_made = [](DType d) { return d == DType::kF16 || d == DType::kBF16 || d == DType::kF32; };
  const auto is_wide_load = [&](DType d) { return is_made(d) || d == DType::kU8 || d == DType::kBool; };
  if (call.wide || call.walk.dims != 1 || call.walk.count == 0) return false;
  if (!is_made(call.out.dtype) || call.out.strides[0] != 1 || !is_aligned(call.out)) return false;
  for (int k = 0; k < call.inputs; ++k) {
    const DeviceArray& in = call.in[k];
    if (in.is_number || in.strides[0] == 0) continue;
    if (in.strides[0] != 1 || !is_wide_load(in.dtype) || !is_aligned(in)) return false;
  }
  return true;
}

// Not through the cache of what is only read: the result may lie where an input does.
template <class Word>
NANHUNT_HOST_DEVICE inline Word load_whole(const void* at) {
#if NANHUNT_ON_DEVICE
  return *static_cast<const Word*>(at);
#else
  Word word;
  memcpy(&word, at, sizeof word);
  return word;
#endif
}
struct alignas(8) HalfVector {
  std::uint32_t words[2];
};

template <int kLanes, class Decode>
NANHUNT_HOST_DEVICE inline void load_halves(const DeviceArray& in, std::int64_t first, float (&x)[kLanes],
                                            Decode decode) {
  using Word = std::conditional_t<kLanes == 8, Vector, HalfVector>;
  const auto loaded = load_whole<Word>(static_cast<const std::uint16_t*>(in.data) + first);
  NANHUNT_UNROLL
  for (int i = 0; i < kLanes; ++i) x[i] = decode(static_cast<std::uint16_t>(loaded.words[i / 2] >> 16 * (i % 2)));
}

// kLanes elements from `first` on, as load_as_common() has them.
template <int kLanes>
NANHUNT_HOST_DEVICE inline void load_lanes(const DeviceArray& in, DType common, std::int64_t first,
                                           float (&x)[kLanes]) {
  if (in.is_number || in.strides[0] == 0) {
    const float number = load_as_common<float>(in, common, 0);
    NANHUNT_UNROLL
    for (float& each : x) each = number;
    return;
  }
  if (in.dtype == DType::kF16) {
    load_halves(in, first, x, [](std::uint16_t code) { return half_to_float(code); });
  } else if (in.dtype == DType::kBF16) {
    load_halves(in, first, x, [](std::uint16_t code) { return bfloat_to_float(code); });
  } else if (in.dtype == DType::kF32) {
    NANHUNT_UNROLL
    for (int i = 0; i < kLanes; i += 4) {
      const auto loaded = load_whole<Vector>(static_cast<const float*>(in.data) + first + i);
      NANHUNT_UNROLL
      for (int k = 0; k < 4; ++k) x[i + k] = bits_as<float>(loaded.words[k]);
    }
  } else {
    NANHUNT_UNROLL
    for (int i = 0; i < kLanes; i += 4) {
      const auto loaded = load_whole<std::uint32_t>(static_cast<const std::uint8_t*>(in.data) + first + i);
      NANHUNT_UNROLL
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t byte = loaded >> 8 * k & 0xffu;
        x[i + k] = static_cast<float>(in.dtype == DType::kBool ? byte != 0 : byte);
      }
    }
  }
  if (!is_rounded_to(common, in.dtype)) return;
  NANHUNT_UNROLL
  for (float& each : x) each = static_cast<float>(rounded_to_16_bits(common, static_cast<double>(each)));
}

template <class F, int kLanes>
NANHUNT_HOST_DEVICE inline void values_at(const MapCall& call, std::int64_t first, float (&out)[kLanes]) {
  const F f = formula_of<F>(call.formula);
  float x[F::kInputs][kLanes];
  NANHUNT_UNROLL
  for (int k = 0; k < F::kInputs; ++k) load_lanes(call.in[k], call.common, first, x[k]);
  NANHUNT_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if constexpr (F::kInputs == 1) {
      out[i] = f(x[0][i]);
    } else if constexpr (F::kInputs == 2) {
      out[i] = f(x[0][i], x[1][i]);
    } else {
      out[i] = f(x[0][i], x[1][i], x[2][i]);
    }
  }
}

NANHUNT_HOST_DEVICE inline std::uint32_t packed(DType dtype, float low, float high) {
  const bool half = dtype == DType::kF16;
  return std::uint32_t{half ? to_half(high) : to_bfloat(high)} << 16 | (half ? to_half(low) : to_bfloat(low));
}

// The vector of elements [first, first + its lanes), all of which there are. `dtype` is the result's.
template <class F>
NANHUNT_HOST_DEVICE inline Vector made_vector(const MapCall& call, DType dtype, std::int64_t first) {
  Vector v;
  if (dtype == DType::kF32) {
    float made[4];
    values_at<F>(call, first, made);
    NANHUNT_UNROLL
    for (int i = 0; i < 4; ++i) v.words[i] = bits_as<std::uint32_t>(made[i]);
  } else {
    float made[8];
    values_at<F>(call, first, made);
    NANHUNT_UNROLL
    for (int i = 0; i < 4; ++i) v.words[i] = packed(dtype, made[2 * i], made[2 * i + 1]);
  }
  return v;
}

// A vector each; the elements after the last whole one are one more's.
template <class F>
struct DenseMapKernel {
  MapCall call;

  NANHUNT_HOST_DEVICE std::int64_t lanes() const { return call.out.dtype == DType::kF32 ? 4 : 8; }
  NANHUNT_HOST_DEVICE std::int64_t count() const { return (call.walk.count + lanes() - 1) / lanes(); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t j) const {
    const std::int64_t first = j * lanes();
    if (call.walk.count - first < lanes()) return element_by_element(first);
    const Vector v = made_vector<F>(call, call.out.dtype, first);
    store_whole(static_cast<std::uint8_t*>(call.out.data) + j * kVectorBytes, v);
  }

  NANHUNT_HOST_DEVICE void element_by_element(std::int64_t first) const {
    const MapKernel<F, float> one{call};
    for (std::int64_t i = first; i < call.walk.count; ++i) one(i);
  }
  NANHUNT_HOST_DEVICE static void store_whole(void* at, const Vector& v) {
#if NANHUNT_ON_DEVICE
    *static_cast<Vector*>(at) = v;
#else
    memcpy(at, &v, sizeof v);
#endif
  }
};

// Calls launch(kernel) with the kernel of the call's formula, width and arrays. False: the formula is not in the list,
// whose first number is kFirst.
template <class Launch, int kFirst, class... F>
bool launch_formula(const MapCall& call, Launch& launch, Formulas<F...>, std::integral_constant<int, kFirst>) {
  int number = kFirst;
  bool found = false;
  const auto try_one = [&]<class One>(One*) {
    if (number++ != call.formula.number) return;
    found = true;
    if (call.wide) {
      launch(MapKernel<One, double>{call});
    } else if (is_dense(call)) {
      launch(DenseMapKernel<One>{call});
    } else {
      launch(MapKernel<One, float>{call});
    }
  };
  (try_one(static_cast<F*>(nullptr)), ...);
  return found;
}

}  // namespace nanhunt::kernels::cuda
