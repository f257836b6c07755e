// SPDX-License-Identifier: Apache-2.0
// Arithmetic in a format of 16 bits: every result is rounded to it, and a sum adds one term after the other. That is
// what kernels do which keep their sums in the format of their tensors, with all that is lost there.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/portable/formats.h"
#include "kernels/portable/host_device.h"
#include "nanhunt/dtype.h"

namespace nanhunt::kernels::cuda {

// A number as tensors of kFormat (kF16, kBF16) hold it. fp32 has more than twice the digits of either, so that rounding
// its results once more gives what one rounding would.
template <DType kFormat>
class Narrow {
 public:
  Narrow() = default;
  NANHUNT_HOST_DEVICE explicit Narrow(float value) : code_(code_of(value)) {}
  NANHUNT_HOST_DEVICE explicit Narrow(double value) : code_(code_of(value)) {}
  template <class Integer>
    requires std::is_integral_v<Integer>
  NANHUNT_HOST_DEVICE explicit Narrow(Integer value) : Narrow(static_cast<double>(value)) {}

  NANHUNT_HOST_DEVICE explicit operator float() const {
    return kFormat == DType::kF16 ? half_to_float(code_) : bfloat_to_float(code_);
  }
  NANHUNT_HOST_DEVICE explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }

  NANHUNT_HOST_DEVICE friend Narrow operator+(Narrow a, Narrow b) { return Narrow(wide(a) + wide(b)); }
  NANHUNT_HOST_DEVICE friend Narrow operator-(Narrow a, Narrow b) { return Narrow(wide(a) - wide(b)); }
  NANHUNT_HOST_DEVICE friend Narrow operator*(Narrow a, Narrow b) { return Narrow(wide(a) * wide(b)); }
  NANHUNT_HOST_DEVICE friend Narrow operator/(Narrow a, Narrow b) { return Narrow(wide(a) / wide(b)); }
  NANHUNT_HOST_DEVICE friend Narrow& operator+=(Narrow& a, Narrow b) { return a = a + b; }
  NANHUNT_HOST_DEVICE friend Narrow& operator-=(Narrow& a, Narrow b) { return a = a - b; }
  NANHUNT_HOST_DEVICE friend Narrow& operator*=(Narrow& a, Narrow b) { return a = a * b; }
  NANHUNT_HOST_DEVICE friend bool operator!=(Narrow a, Narrow b) { return wide(a) != wide(b); }
  NANHUNT_HOST_DEVICE friend Narrow sqrt(Narrow a) { return Narrow(std::sqrt(wide(a))); }
  NANHUNT_HOST_DEVICE friend std::uint16_t to_half(Narrow a) { return cuda::to_half(wide(a)); }
  NANHUNT_HOST_DEVICE friend std::uint16_t to_bfloat(Narrow a) { return cuda::to_bfloat(wide(a)); }

 private:
  NANHUNT_HOST_DEVICE static float wide(Narrow a) { return static_cast<float>(a); }
  template <class T>
  NANHUNT_HOST_DEVICE static std::uint16_t code_of(T value) {
    return kFormat == DType::kF16 ? cuda::to_half(value) : cuda::to_bfloat(value);
  }

  std::uint16_t code_ = 0;
};

template <class T>
inline constexpr bool kIsNarrow = false;
template <DType kFormat>
inline constexpr bool kIsNarrow<Narrow<kFormat>> = true;

// A sum over a count that is a number of the program's: exact, whatever the format.
template <class T>
NANHUNT_HOST_DEVICE inline T divided(T sum, std::int64_t count) {
  if constexpr (kIsNarrow<T>) {
    return T(static_cast<float>(sum) / static_cast<float>(count));
  } else {
    return sum / static_cast<T>(count);
  }
}

// f(0) + ... + f(n - 1) by the lanes of lanes.h; every lane gets it.
template <class T, class Lanes, class F>
NANHUNT_HOST_DEVICE inline T row_sum(const Lanes& lanes, std::int64_t n, const F& f) {
  if constexpr (kIsNarrow<T>) {
    T sum{0};
    for (std::int64_t i = 0; i < n; ++i) sum += f(i);  // each of them, so that none waits for another
    return sum;
  } else {
    return lanes.template sum<T>(n, f);
  }
}

// run(T{}) with the arithmetic of a format: double, float, or that of 16 bits.
template <class Run>
auto in_arithmetic_of(DType format, const Run& run) {
  switch (format) {
    case DType::kF64:
      return run(double{});
    case DType::kF16:
      return run(Narrow<DType::kF16>{});
    case DType::kBF16:
      return run(Narrow<DType::kBF16>{});
    default:
      return run(float{});
  }
}

}  // namespace nanhunt::kernels::cuda
