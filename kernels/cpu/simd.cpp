// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd.h"

#include <cstddef>
#include <cstdlib>

#include "kernels/cpu/simd_build.h"

namespace nanhunt::kernels {
namespace {

Simd choose() {
  Simd best = Simd::kScalar;
  for (const Simd simd : kAllSimd) {
    if (simd_supported(simd)) best = simd;
  }
  const char* wish = std::getenv("NANHUNT_SIMD");
  if (wish == nullptr) return best;
  const std::optional<Simd> wanted = parse_simd(wish);
  return wanted.has_value() && *wanted < best && simd_supported(*wanted) ? *wanted : best;
}

}  // namespace

std::string_view simd_name(Simd simd) {
  switch (simd) {
    case Simd::kScalar:
      return "scalar";
    case Simd::kAvx2:
      return "avx2";
    case Simd::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<Simd> parse_simd(std::string_view name) {
  for (const Simd simd : kAllSimd) {
    if (simd_name(simd) == name) return simd;
  }
  return std::nullopt;
}

bool simd_supported(Simd simd) {
  switch (simd) {
    case Simd::kScalar:
      return true;
    case Simd::kAvx2:
      return cpu_has_avx2();
    case Simd::kAvx512:
      return cpu_has_avx512();
  }
  return false;
}

Simd active_simd() {
  static const Simd kActive = choose();
  return kActive;
}

}  // namespace nanhunt::kernels
