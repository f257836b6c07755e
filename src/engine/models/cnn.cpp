// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {

Cnn::Cnn(const CnnOptions& options) {
  RandomStream random(options.seed, /*stream=*/0);
  const std::int64_t channels = options.channels;
  const DType dtype = options.dtype;
  append("conv1", std::make_unique<Conv2d>(1, channels, Conv2dOptions{.with_bias = false}, random, dtype));
  append("bn1", std::make_unique<BatchNorm2d>(channels, dtype));
  append("relu1", std::make_unique<Relu>());
  append("block", std::make_unique<ResidualBlock>(channels, random, dtype));
  append("pool1", std::make_unique<MaxPool2d>(2));
  append("conv2", std::make_unique<Conv2d>(channels, 2 * channels, Conv2dOptions{.with_bias = false}, random, dtype));
  append("bn2", std::make_unique<BatchNorm2d>(2 * channels, dtype));
  append("relu2", std::make_unique<Relu>());
  append("pool2", std::make_unique<AvgPool2d>(2));
  append("flatten", std::make_unique<Flatten>());
  append("fc", std::make_unique<Linear>(8 * channels, 10, random, dtype));
}

Tensor Cnn::forward(const Tensor& input) { return Sequential::forward(reshape(input, {-1, 1, 8, 8})); }

}  // namespace nanhunt::engine
