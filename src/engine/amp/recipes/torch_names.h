// SPDX-License-Identifier: Apache-2.0
// What PyTorch calls formats. The CPU stands in for CUDA.
#pragma once

#include <string>

#include "nanhunt/dtype.h"

namespace nanhunt::engine {

inline std::string torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "torch.float16";
    case DType::kBF16:
      return "torch.bfloat16";
    case DType::kF64:
      return "torch.float64";
    case DType::kF32:
      return "torch.float32";
    default:
      return std::string(dtype_name(dtype));
  }
}

inline std::string torch_tensor_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "torch.cuda.HalfTensor";
    case DType::kBF16:
      return "torch.cuda.BFloat16Tensor";
    case DType::kF64:
      return "torch.cuda.DoubleTensor";
    case DType::kF32:
      return "torch.cuda.FloatTensor";
    default:
      return std::string(dtype_name(dtype));
  }
}

}  // namespace nanhunt::engine
