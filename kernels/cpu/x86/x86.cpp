// SPDX-License-Identifier: Apache-2.0
#include <cpuid.h>

#include "kernels/cpu/simd_build.h"

namespace nanhunt::kernels {
namespace {

// Not every compiler knows this one by name.
bool cpu_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

// __builtin_cpu_supports asks the operating system too: it is false where wide registers are not saved.
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c(); }

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

}  // namespace nanhunt::kernels
