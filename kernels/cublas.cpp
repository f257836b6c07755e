// SPDX-License-Identifier: Apache-2.0
#include "kernels/cublas.h"

#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "kernels/vendor_library.h"

namespace nanhunt::kernels {
namespace {

// The name of the first function that is not there; nullptr when all are.
const char* bind_all(void* library, CublasFunctions& f) {
  if (!bind_function(library, "cublasCreate_v2", f.create)) return "cublasCreate_v2";
  if (!bind_function(library, "cublasDestroy_v2", f.destroy)) return "cublasDestroy_v2";
  if (!bind_function(library, "cublasSetStream_v2", f.set_stream)) return "cublasSetStream_v2";
  if (!bind_function(library, "cublasSetWorkspace_v2", f.set_workspace)) return "cublasSetWorkspace_v2";
  if (!bind_function(library, "cublasSetMathMode", f.set_math_mode)) return "cublasSetMathMode";
  if (!bind_function(library, "cublasGetVersion_v2", f.get_version)) return "cublasGetVersion_v2";
  if (!bind_function(library, "cublasGemmEx", f.gemm)) return "cublasGemmEx";
  if (!bind_function(library, "cublasGemmStridedBatchedEx", f.gemm_batched)) return "cublasGemmStridedBatchedEx";
  return nullptr;
}

struct Format {
  int type, compute;
};
Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {cublas::kF16, cublas::kComputeF32};
    case DType::kBF16:
      return {cublas::kBF16, cublas::kComputeF32};
    case DType::kF32:
      return {cublas::kF32, cublas::kComputeF32};
    case DType::kF64:
      return {cublas::kF64, cublas::kComputeF64};
    default:
      throw std::runtime_error("cublas: no products of " + std::string(dtype_name(dtype)));
  }
}

int as_int(std::int64_t value) {
  if (value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  throw std::runtime_error("cublas: dimensions below 2^31 are expected, got " + std::to_string(value));
}

}  // namespace

int cublas_math_mode(const ProductMath& math) {
  return (math.tf32 ? cublas::kTf32Math : cublas::kDefaultMath) | (math.reduced_sums ? 0 : cublas::kNoReducedSums);
}

std::string describe_product_math(const ProductMath& math) {
  const char* forced = std::getenv("NVIDIA_TF32_OVERRIDE");
  const std::string_view value = forced != nullptr ? forced : "";
  std::string tf32 = math.tf32 ? "TF32 on" : "TF32 off";
  if (value == "1") tf32 = "TF32 forced by NVIDIA_TF32_OVERRIDE";
  if (value == "0" && math.tf32) tf32 = "TF32 kept off by NVIDIA_TF32_OVERRIDE";
  return tf32 + ", reduced-precision reduction " + (math.reduced_sums ? "on" : "off");
}

std::string cublas_status_name(int status) {
  switch (status) {
    case 1:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case 8:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "cuBLAS status " + std::to_string(status);
  }
}

bool find_cublas(CublasFunctions& found, std::string& why) {
  const VendorLibrary wanted = {
      "cuBLAS",
      "NANHUNT_CUBLAS",
      {"libcublas.so.13", "libcublas.so.12"},
      "Install it (Debian and Ubuntu: libcublas-13-0 of NVIDIA's repository; with pip: nvidia-cublas)"};
  found.file = find_vendor_library(wanted, [&](void* library) { return bind_all(library, found); }, why);
  return !found.file.empty();
}

const CublasFunctions* load_cublas(std::string& why) {
  static std::string reason;
  static CublasFunctions functions;
  static const bool found = find_cublas(functions, reason);
  if (found) return &functions;
  why = reason;
  return nullptr;
}

void cublas_multiply(const CublasFunctions& cublas, void* handle, const ProductCall& call) {
  const auto [type, compute] = format_of(call.dtype);
  const bool wide = call.dtype == DType::kF64;
  const int type_c = format_of(call.result()).type;
  const float one_f = 1, beta_f = static_cast<float>(call.beta);
  const double one_d = 1, beta_d = call.beta;
  const void* alpha = wide ? static_cast<const void*>(&one_d) : &one_f;
  const void* beta = wide ? static_cast<const void*>(&beta_d) : &beta_f;
  const auto op = [](const MatrixOperand& o) { return o.transposed ? cublas::kTransposed : cublas::kAsItLies; };
  const int m = as_int(call.m), n = as_int(call.n), k = as_int(call.k);
  // A stored row may be shorter than cuBLAS wants of a matrix with one row: it never steps over it then.
  const auto lead = [](const MatrixOperand& o, std::int64_t stored_row) {
    return as_int(o.lead < stored_row ? stored_row : o.lead);
  };
  const int lead_a = lead(call.a, call.a.transposed ? call.m : call.k);
  const int lead_b = lead(call.b, call.b.transposed ? call.k : call.n);
  int status = 0;
  if (call.batch == 1) {
    status = cublas.gemm(handle, op(call.b), op(call.a), n, m, k, alpha, call.b.data, type, lead_b, call.a.data, type,
                         lead_a, beta, call.c, type_c, n, compute, cublas::kDefaultAlgorithm);
  } else {
    status = cublas.gemm_batched(handle, op(call.b), op(call.a), n, m, k, alpha, call.b.data, type, lead_b, call.b.step,
                                 call.a.data, type, lead_a, call.a.step, beta, call.c, type_c, n, call.m * call.n,
                                 as_int(call.batch), compute, cublas::kDefaultAlgorithm);
  }
  if (status != cublas::kSuccess) {
    throw std::runtime_error("cublas: a product of " + std::to_string(m) + " x " + std::to_string(k) + " and " +
                             std::to_string(k) + " x " + std::to_string(n) + " in " +
                             std::string(dtype_name(call.dtype)) + " failed: " + cublas_status_name(status));
  }
}

}  // namespace nanhunt::kernels
