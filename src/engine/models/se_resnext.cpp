// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {

SeResNeXt::SeResNeXt(const SeResNeXtOptions& options) {
  RandomStream random(options.seed, /*stream=*/0);
  const std::int64_t channels = options.channels;
  const DType dtype = options.dtype;
  const auto block = [&](const char* name, std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride) {
    append(name, std::make_unique<SeResNeXtBlock>(
                     SeResNeXtBlockOptions{.in_channels = in_channels, .width = out_channels,
                                           .out_channels = out_channels, .groups = options.groups, .stride = stride,
                                           .reduction = options.reduction},
                     random, dtype));
  };
  append("conv", std::make_unique<Conv2d>(1, channels, Conv2dOptions{.with_bias = false}, random, dtype));
  append("bn", std::make_unique<BatchNorm2d>(channels, dtype));
  append("relu", std::make_unique<Relu>());
  block("block1", channels, channels, 1);
  block("block2", channels, 2 * channels, 2);
  block("block3", 2 * channels, 2 * channels, 1);
  append("pool", std::make_unique<AvgPool2d>(4));
  append("flatten", std::make_unique<Flatten>());
  append("fc", std::make_unique<Linear>(2 * channels, 10, random, dtype));
}

Tensor SeResNeXt::forward(const Tensor& input) { return Sequential::forward(reshape(input, {-1, 1, 8, 8})); }

}  // namespace nanhunt::engine
