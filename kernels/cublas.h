// SPDX-License-Identifier: Apache-2.0
// Matrix products of a device through cuBLAS, which is looked for when the first one is needed: a build needs neither
// its headers nor its library. Own prototypes of the few functions used; kernels/cuda/cublas_check.cu holds them to
// cublas_v2.h where that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device_ops.h"

namespace nanhunt::kernels {

// Of cublas_v2.h and library_types.h; enumerations are ints there.
namespace cublas {
inline constexpr int kSuccess = 0;
inline constexpr int kAsItLies = 0, kTransposed = 1;                         // cublasOperation_t
inline constexpr int kF32 = 0, kF64 = 1, kF16 = 2, kBF16 = 14;               // cudaDataType
inline constexpr int kComputeF32 = 68, kComputeF64 = 70;                     // cublasComputeType_t
inline constexpr int kDefaultMath = 0, kTf32Math = 3, kNoReducedSums = 16;   // cublasMath_t
inline constexpr int kDefaultAlgorithm = -1;                                 // cublasGemmAlgo_t
}  // namespace cublas

struct CublasFunctions {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*set_workspace)(void* handle, void* memory, std::size_t bytes) = nullptr;
  int (*set_math_mode)(void* handle, int mode) = nullptr;
  int (*get_version)(void* handle, int* version) = nullptr;
  int (*gemm)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int type_a,
              int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute,
              int algorithm) = nullptr;
  int (*gemm_batched)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                      int type_a, int lda, long long step_a, const void* b, int type_b, int ldb, long long step_b,
                      const void* beta, void* c, int type_c, int ldc, long long step_c, int batch, int compute,
                      int algorithm) = nullptr;
  std::string file;  // what was loaded
};

// As find_vendor_library() looks for it: NANHUNT_CUBLAS (a path), else libcublas.so.13 or .12. nullptr: `why` says what
// was looked for and what to do. Looks once.
const CublasFunctions* load_cublas(std::string& why);
// The same without memory of earlier calls, for tests.
bool find_cublas(CublasFunctions& found, std::string& why);

// cuBLAS is column-major: this asks it for c^T = b^T a^T. Throws std::runtime_error.
void cublas_multiply(const CublasFunctions& cublas, void* handle, const ProductCall& call);
int cublas_math_mode(const ProductMath& math);  // a cublasMath_t
// "TF32 off, reduced-precision reduction off". NVIDIA_TF32_OVERRIDE counts: cuBLAS obeys it whatever it is told.
std::string describe_product_math(const ProductMath& math);
// "CUBLAS_STATUS_ALLOC_FAILED" for 3
std::string cublas_status_name(int status);

}  // namespace nanhunt::kernels
