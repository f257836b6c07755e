// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector_math_paths.h"

// Last: what follows is compiled for AVX-512.
#include "kernels/cpu/x86/x86_avx512_begin.h"

#define NANHUNT_VECTOR_BYTES 64
#include "kernels/cpu/vector_math_loops.h"

namespace nanhunt::kernels {

const VectorMathPath* vector_math_path_avx512() { return &kPath; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
