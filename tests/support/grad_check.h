// SPDX-License-Identifier: Apache-2.0
// Gradients against central differences, in fp64. Any shape, layout and number of inputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine::testing {

using GradFunction = std::function<Tensor(const std::vector<Tensor>&)>;

// Distinct values between low and high, in no order, the same on every machine.
inline std::vector<double> spread_values(std::int64_t count, double low, double high) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = 0.37 + 0.6180339887498949 * static_cast<double>(i);
    values.push_back(low + (high - low) * (x - std::floor(x)));
  }
  return values;
}

inline Tensor spread_tensor(const Shape& sizes, double low, double high, DType dtype = DType::kF64) {
  std::int64_t count = 1;
  for (std::int64_t size : sizes) count *= size;
  return Tensor::from_values(spread_values(count, low, high), sizes, dtype);
}

// The same values as a window into a larger storage: an offset, and the dimensions stored the other way round.
inline Tensor strided_copy(const Tensor& source) {
  const NoGradGuard no_grad;
  auto impl = std::make_shared<TensorImpl>();
  const Shape& sizes = source.sizes();
  std::int64_t extent = 3;
  impl->offset = 3;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    impl->strides.push_back(extent - 1);
    extent = (extent - 1) * std::max<std::int64_t>(sizes[d], 1) + 2;
  }
  impl->storage = std::make_shared<Storage>(static_cast<std::size_t>(extent + 3) * dtype_size(source.dtype()));
  impl->dtype = source.dtype();
  impl->sizes = sizes;
  Tensor out(std::move(impl));
  out.copy_from(source);
  return out;
}

inline double* element(Tensor& tensor, std::int64_t flat) {
  std::int64_t offset = 0;
  for (std::size_t d = tensor.sizes().size(); d-- > 0;) {
    offset += flat % tensor.sizes()[d] * tensor.strides()[d];
    flat /= tensor.sizes()[d];
  }
  return tensor.data<double>() + offset;
}

// The result weighted by distinct numbers and summed, so that each element of the gradient counts.
inline Tensor weighted_sum(const Tensor& result) { return sum(mul(result, spread_tensor(result.sizes(), 0.5, 1.5))); }

// Every fp64 input that requires a gradient is checked, element by element.
inline void expect_gradients_match(const GradFunction& f, std::vector<Tensor> inputs, double tolerance = 1e-7) {
  std::vector<Tensor> wanted;
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) wanted.push_back(input);
  }
  const std::vector<Tensor> gradients = grad(weighted_sum(f(inputs)), wanted);
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    ASSERT_TRUE(gradients[k].defined()) << "no gradient for input " << k;
    ASSERT_EQ(gradients[k].sizes(), wanted[k].sizes());
    for (std::int64_t i = 0; i < wanted[k].numel(); ++i) {
      const NoGradGuard no_grad;
      double* x = element(wanted[k], i);
      const double kept = *x, h = 1e-5 * std::max(1.0, std::fabs(kept));
      *x = kept + h;
      const double up = weighted_sum(f(inputs)).item();
      *x = kept - h;
      const double down = weighted_sum(f(inputs)).item();
      *x = kept;
      const double expected = (up - down) / (2 * h), got = gradients[k].at(i);
      EXPECT_NEAR(got, expected, tolerance * std::max(1.0, std::fabs(expected))) << "input " << k << ", element " << i;
    }
  }
}

}  // namespace nanhunt::engine::testing
