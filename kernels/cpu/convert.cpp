// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/convert.h"

#include "kernels/cpu/convert_paths.h"
#include "nanhunt/dtype.h"

namespace nanhunt::kernels {
namespace {

template <class From, class To, To (*kConvert)(From)>
void each(const From* from, To* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = kConvert(from[i]);
}

constexpr ConvertPath kScalarPath = {each<std::uint16_t, float, f16_to_f32>, each<float, std::uint16_t, f32_to_f16>,
                                     each<std::uint16_t, float, bf16_to_f32>, each<float, std::uint16_t, f32_to_bf16>};

const ConvertPath& active() {
  static const ConvertPath& kActive = convert_path(active_simd());
  return kActive;
}

}  // namespace

const ConvertPath& convert_path(Simd simd) {
  const ConvertPath* path = nullptr;
  if (simd == Simd::kAvx2) path = convert_path_avx2();
  if (simd == Simd::kAvx512) path = convert_path_avx512();
  return path != nullptr ? *path : kScalarPath;
}

void convert_f16_to_f32(const std::uint16_t* from, float* to, std::size_t count) {
  active().f16_to_f32(from, to, count);
}
void convert_f32_to_f16(const float* from, std::uint16_t* to, std::size_t count) {
  active().f32_to_f16(from, to, count);
}
void convert_bf16_to_f32(const std::uint16_t* from, float* to, std::size_t count) {
  active().bf16_to_f32(from, to, count);
}
void convert_f32_to_bf16(const float* from, std::uint16_t* to, std::size_t count) {
  active().f32_to_bf16(from, to, count);
}

}  // namespace nanhunt::kernels
