// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>

#include "kernels/cpu/products_paths.h"

// Last: what follows is compiled for AVX2.
#include "kernels/cpu/x86/x86_avx2_begin.h"

#define NANHUNT_VECTOR_BYTES 32
#include "kernels/cpu/products_loops.h"

namespace nanhunt::kernels {

const ProductPath* product_path_avx2() { return &kPath; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
