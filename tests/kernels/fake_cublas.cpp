// SPDX-License-Identifier: Apache-2.0
// A library with the few functions of cuBLAS that are used, for tests of how they are found and called: column-major
// products of fp32, and of bf16 with an fp32 result, in host memory.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kNotSupported = 15, kF32 = 0, kBF16 = 14;

}  // namespace

extern "C" {

int cublasCreate_v2(void**) { return 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, std::size_t) { return 0; }
int cublasSetMathMode(void*, int) { return 0; }
int cublasGetVersion_v2(void*, int* version) {
  *version = 130000;
  return 0;
}

int cublasGemmStridedBatchedEx(void*, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                               int type_a, int lda, long long step_a, const void* b, int, int ldb, long long step_b,
                               const void* beta, void* c, int type_c, int ldc, long long step_c, int batch, int, int) {
  if ((type_a != kF32 && type_a != kBF16) || type_c != kF32) return kNotSupported;
  const auto at = [type_a](const void* data, long long start, int op, int ld, int row, int column) {
    const long long index =
        op == 0 ? row + static_cast<long long>(column) * ld : column + static_cast<long long>(row) * ld;
    if (type_a == kF32) return static_cast<const float*>(data)[start + index];
    const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(data)[start + index]} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (int i = 0; i < batch; ++i) {
    for (int column = 0; column < n; ++column) {
      for (int row = 0; row < m; ++row) {
        float& out = static_cast<float*>(c)[i * step_c + row + static_cast<long long>(column) * ldc];
        float sum = 0;
        for (int inner = 0; inner < k; ++inner) {
          sum += at(a, i * step_a, op_a, lda, row, inner) * at(b, i * step_b, op_b, ldb, inner, column);
        }
        out = scale * sum + (keep == 0 ? 0 : keep * out);
      }
    }
  }
  return 0;
}

int cublasGemmEx(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int type_a,
                 int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc,
                 int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                    type_c, ldc, 0, 1, compute, algorithm);
}

}  // extern "C"
