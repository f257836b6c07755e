// SPDX-License-Identifier: Apache-2.0
// exp, erf, gelu of one fp32 number with the bits of kernels/cpu/vector_math.h: the same steps, each rounded, written
// for one value instead of a vector, for the device and the CPU. Only additions, products and conversions.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"

namespace nanhunt::kernels::cuda {

NANHUNT_HOST_DEVICE inline float exact_exp(float from) {
  if (!(from == from)) return from;
  double x = static_cast<double>(from);
  x = x > 90.0 ? 90.0 : x;
  x = x < -110.0 ? -110.0 : x;
  const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52;
  const double whole = shifted - 0x1.8p52;
  const double r = x - whole * 0x1.62e42fefa39efp-1;
  double p = 0x1.a124f1a3cbd2bp-13;
  p = p * r + 0x1.6d43246bb0d22p-10;
  p = p * r + 0x1.1110e0f236d36p-7;
  p = p * r + 0x1.5554e90635828p-5;
  p = p * r + 0x1.5555555a78edbp-3;
  p = p * r + 0x1.0000000b9129ep-1;
  p = p * (r * r) + r + 1.0;
  const std::uint64_t scaled = bits_as<std::uint64_t>(p) + (bits_as<std::uint64_t>(shifted) << 52);
  return static_cast<float>(bits_as<double>(scaled));
}

NANHUNT_HOST_DEVICE inline float exact_erf(float x) {
  const std::uint32_t sign = bits_as<std::uint32_t>(x) & 0x80000000u;
  const float t = bits_as<float>(bits_as<std::uint32_t>(x) ^ sign);
  if (t > 0.921875f) {
    const float u = t > 5.0f ? 5.0f : t;
    const float u2 = u * u;
    float q = u * -1.72853470e-5f + 3.83197126e-4f;
    q = q * u2 + (u * -3.88396438e-3f + 2.42546219e-2f);
    q = q * u - 1.06777877e-1f;
    q = q * u - 6.34846687e-1f;
    q = q * u - 1.28717512e-1f;
    q = q * u - u;
    const float far = 1.0f - exact_exp(q);
    return bits_as<float>(bits_as<std::uint32_t>(far) | sign);
  }
  const float s = x * x;
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  return near * x + x;  // NaN comes here and stays
}

}  // namespace nanhunt::kernels::cuda
