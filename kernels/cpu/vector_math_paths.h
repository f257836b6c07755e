// SPDX-License-Identifier: Apache-2.0
// The vector paths of vector_math.h; nullptr in a build without them.
#pragma once

#include "kernels/cpu/vector_math.h"

namespace nanhunt::kernels {

const VectorMathPath* vector_math_path_avx2();
const VectorMathPath* vector_math_path_avx512();

}  // namespace nanhunt::kernels
