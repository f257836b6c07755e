// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {
UNet::UNet(const UNetOptions& options)
    : random_(options.seed, /*stream=*/0),
      dtype_(options.dtype),
      down1_(add_level("down1", 1, options.channels)),
      pool1_(register_module("pool1", std::make_unique<MaxPool2d>(2))),
      down2_(add_level("down2", options.channels, 2 * options.channels)),
      pool2_(register_module("pool2", std::make_unique<MaxPool2d>(2))),
      bottom_(add_level("bottom", 2 * options.channels, 4 * options.channels)),
      up2_(register_module("up2", std::make_unique<Upsample>(2))),
      merge2_(add_level("merge2", 6 * options.channels, 2 * options.channels)),
      up1_(register_module("up1", std::make_unique<Upsample>(2))),
      merge1_(add_level("merge1", 3 * options.channels, options.channels)),
      out_(register_module("out", std::make_unique<Conv2d>(options.channels, 1, Conv2dOptions{.kernel = 1}, random_,
                                                           dtype_))) {}

Module& UNet::add_level(const std::string& name, std::int64_t in_channels, std::int64_t out_channels) {
  auto level = std::make_unique<Sequential>();
  const Conv2dOptions no_bias{.with_bias = false};
  level->append("conv", std::make_unique<Conv2d>(in_channels, out_channels, no_bias, random_, dtype_));
  level->append("bn", std::make_unique<BatchNorm2d>(out_channels, dtype_));
  level->append("relu", std::make_unique<Relu>());
  return register_module(name, std::move(level));
}

Tensor UNet::forward(const Tensor& input) {
  const Tensor top = down1_(reshape(input, {-1, 1, 8, 8}));
  const Tensor middle = down2_(pool1_(top));
  const Tensor bottom = bottom_(pool2_(middle));
  const Tensor risen = merge2_(cat({up2_(bottom), middle}, 1));
  return flatten(out_(merge1_(cat({up1_(risen), top}, 1))), 1);
}

}  // namespace nanhunt::engine
