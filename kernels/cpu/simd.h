// SPDX-License-Identifier: Apache-2.0
// Which vector instructions the CPU kernels may use. Every path gives the same answers (kernels/CONTRACTS.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nanhunt::kernels {

enum class Simd : std::uint8_t {
  kScalar = 0,
  kAvx2 = 1,    // AVX2, FMA, F16C
  kAvx512 = 2,  // AVX-512 F, BW, DQ, VL, CD
};
inline constexpr Simd kAllSimd[] = {Simd::kScalar, Simd::kAvx2, Simd::kAvx512};

std::string_view simd_name(Simd simd);  // "scalar", "avx2", "avx512"
std::optional<Simd> parse_simd(std::string_view name);

// Whether this build and this CPU (and its operating system) can run the path.
bool simd_supported(Simd simd);

// The best supported path. The environment variable NANHUNT_SIMD (scalar, avx2 or avx512), read once,
// lowers it; a path that is not supported is never chosen, whatever the variable says.
Simd active_simd();

}  // namespace nanhunt::kernels
