// SPDX-License-Identifier: Apache-2.0
// Holds kernels/cublas.h to cublas_v2.h where the toolkit has it. Makes no code.
#include <library_types.h>

#include "kernels/cublas.h"

namespace nanhunt::kernels {

static_assert(cublas::kF32 == CUDA_R_32F && cublas::kF64 == CUDA_R_64F && cublas::kF16 == CUDA_R_16F &&
              cublas::kBF16 == CUDA_R_16BF);

}  // namespace nanhunt::kernels

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>

#include <type_traits>

namespace nanhunt::kernels {

static_assert(cublas::kSuccess == CUBLAS_STATUS_SUCCESS && cublas::kAsItLies == CUBLAS_OP_N &&
              cublas::kTransposed == CUBLAS_OP_T && cublas::kComputeF32 == CUBLAS_COMPUTE_32F &&
              cublas::kComputeF64 == CUBLAS_COMPUTE_64F && cublas::kDefaultMath == CUBLAS_DEFAULT_MATH &&
              cublas::kTf32Math == CUBLAS_TF32_TENSOR_OP_MATH &&
              cublas::kNoReducedSums == CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION &&
              cublas::kDefaultAlgorithm == CUBLAS_GEMM_DEFAULT);
static_assert(sizeof(cublasStatus_t) == sizeof(int) && sizeof(cublasOperation_t) == sizeof(int) &&
              sizeof(cublasComputeType_t) == sizeof(int) && sizeof(cublasGemmAlgo_t) == sizeof(int) &&
              sizeof(cublasHandle_t) == sizeof(void*));
static_assert(
    std::is_same_v<decltype(&cublasGemmEx),
                   cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                      const void*, cudaDataType, int, const void*, cudaDataType, int, const void*,
                                      void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t)>);
static_assert(std::is_same_v<decltype(&cublasGemmStridedBatchedEx),
                             cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                                const void*, const void*, cudaDataType, int, long long, const void*,
                                                cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                                long long, int, cublasComputeType_t, cublasGemmAlgo_t)>);

}  // namespace nanhunt::kernels
#endif
