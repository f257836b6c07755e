// SPDX-License-Identifier: Apache-2.0
// Whole tensors as op math values in row-major order, for kernels that jump around in them. No copy when a tensor
// already lies so.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "src/engine/memory.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {

// An unsigned integer as wide as T, to select values by their bits.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <typename T>
class DenseInput {
 public:
  explicit DenseInput(const Tensor& tensor) : tensor_(tensor) {
    if (tensor.dtype() == kDTypeOf<T> && tensor.is_contiguous()) {
      data_ = tensor.data<T>();
      return;
    }
    widened_ = std::make_unique<Scratch<T>>(tensor.numel());
    read_all(Reader<T>(tensor, tensor.sizes(), tensor.dtype()), 0, tensor.numel(), widened_->data());
    data_ = widened_->data();
  }
  const T* data() const { return data_; }

 private:
  Tensor tensor_;  // keeps the memory alive
  std::unique_ptr<Scratch<T>> widened_;
  const T* data_ = nullptr;
};

// A new tensor: fill data(), then finish() stores each value with one rounding.
template <typename T>
class DenseOutput {
 public:
  DenseOutput(const Shape& sizes, DType dtype) : tensor_(Tensor::empty(sizes, dtype)) {
    if (dtype != kDTypeOf<T>) wide_ = std::make_unique<Scratch<T>>(tensor_.numel());
  }
  T* data() { return wide_ ? wide_->data() : tensor_.data<T>(); }
  Tensor finish() {
    if (wide_) write_all(Writer<T>(tensor_), 0, tensor_.numel(), wide_->data());
    return tensor_;
  }

 private:
  Tensor tensor_;
  std::unique_ptr<Scratch<T>> wide_;
};

// run(float{}), or run(double{}) for fp64.
template <typename Run>
auto in_op_math(DType dtype, Run run) {
  return dtype == DType::kF64 ? run(double{}) : run(float{});
}

}  // namespace nanhunt::engine
