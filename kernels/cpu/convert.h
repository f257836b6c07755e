// SPDX-License-Identifier: Apache-2.0
// Bulk conversions between 16-bit formats and fp32: element by element what nanhunt/dtype.h does, NaN bits
// included, with the best instructions of this CPU. Input and output must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace nanhunt::kernels {

void convert_f16_to_f32(const std::uint16_t* from, float* to, std::size_t count);
void convert_f32_to_f16(const float* from, std::uint16_t* to, std::size_t count);
void convert_bf16_to_f32(const std::uint16_t* from, float* to, std::size_t count);
void convert_f32_to_bf16(const float* from, std::uint16_t* to, std::size_t count);

// One path's loops. For tests and benchmarks; everything else calls the functions above.
struct ConvertPath {
  void (*f16_to_f32)(const std::uint16_t*, float*, std::size_t);
  void (*f32_to_f16)(const float*, std::uint16_t*, std::size_t);
  void (*bf16_to_f32)(const std::uint16_t*, float*, std::size_t);
  void (*f32_to_bf16)(const float*, std::uint16_t*, std::size_t);
};
const ConvertPath& convert_path(Simd simd);  // must be supported

}  // namespace nanhunt::kernels
