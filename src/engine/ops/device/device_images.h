// SPDX-License-Identifier: Apache-2.0
// Ops over images on a device: windows as the calls of kernels/device_ops.h. Each does what its neighbour for the CPU
// does.
#pragma once

#include <array>
#include <cstdint>

#include "src/engine/ops/op.h"
#include "src/engine/ops/images/windows.h"

namespace nanhunt::engine {

Tensor device_convolution(const Windows& w, std::int64_t groups, const Tensor& input, const Tensor& weight,
                          const Tensor& bias);
// Gradients of input, weight and bias; undefined where not wanted, as is what they alone need. The bias gradient is
// summed `images_at_once` at a time.
struct ConvolutionWanted {
  bool input, weight, bias;
};
std::array<Tensor, 3> device_convolution_gradient(const Windows& w, std::int64_t groups, const Tensor& grad,
                                                  const Tensor& input, const Tensor& weight,
                                                  const ConvolutionWanted& wanted, const Shape& weight_sizes,
                                                  std::int64_t images_at_once);

Tensor device_max_pool(const Windows& w, const Tensor& self, const Tensor& indices);
Tensor device_max_pool_gradient(const Windows& w, const Tensor& grad, const Tensor& indices);
Tensor device_avg_pool(const Windows& w, const Tensor& self);
Tensor device_avg_pool_gradient(const Windows& w, const Tensor& grad);
Tensor device_upsample(const Tensor& self, const Shape& sizes, std::int64_t scale);
Tensor device_upsample_gradient(const Tensor& grad, const Shape& sizes, std::int64_t scale);

}  // namespace nanhunt::engine
