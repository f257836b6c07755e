// SPDX-License-Identifier: Apache-2.0
// Builds for other processors: the scalar path alone.
#include "kernels/cpu/checksum.h"
#include "kernels/cpu/convert_paths.h"
#include "kernels/cpu/products_paths.h"
#include "kernels/cpu/simd_build.h"
#include "kernels/cpu/tensor_stats_block.h"
#include "kernels/cpu/vector_math_paths.h"

namespace nanhunt::kernels {

bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }

ChecksumStripes checksum_stripes_avx2() { return nullptr; }
ChecksumStripes checksum_stripes_avx512() { return nullptr; }

const ConvertPath* convert_path_avx2() { return nullptr; }
const ConvertPath* convert_path_avx512() { return nullptr; }

const ProductPath* product_path_avx2() { return nullptr; }
const ProductPath* product_path_avx512() { return nullptr; }

const VectorMathPath* vector_math_path_avx2() { return nullptr; }
const VectorMathPath* vector_math_path_avx512() { return nullptr; }

const StatsKernel* stats_kernel_avx2(DType) { return nullptr; }
const StatsKernel* stats_kernel_avx512(DType) { return nullptr; }

}  // namespace nanhunt::kernels
