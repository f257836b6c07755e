// SPDX-License-Identifier: Apache-2.0
// What the vector code of this build offers. x86.cpp answers on x86-64, no_x86.cpp (always no) elsewhere:
// CMake picks one of the two.
#pragma once

namespace nanhunt::kernels {

bool cpu_has_avx2();
bool cpu_has_avx512();

}  // namespace nanhunt::kernels
