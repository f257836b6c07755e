// SPDX-License-Identifier: Apache-2.0
// Squeeze and excitation, and the block of a residual network that is made of it and of grouped convolutions.
#include <algorithm>

#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

std::int64_t squeezed(std::int64_t channels, std::int64_t reduction) {
  if (reduction < 1) fail("squeeze_excitation", "a reduction of 1 or more", std::to_string(reduction));
  return std::max<std::int64_t>(channels / reduction, 1);
}

std::unique_ptr<Conv2d> conv(std::int64_t in, std::int64_t out, Conv2dOptions options, RandomStream& random,
                             DType dtype) {
  options.with_bias = false;  // a batch norm follows
  return std::make_unique<Conv2d>(in, out, options, random, dtype);
}

}  // namespace

SqueezeExcitation::SqueezeExcitation(std::int64_t channels, std::int64_t reduction, RandomStream& random, DType dtype)
    : fc1_(register_module("fc1", std::make_unique<Linear>(channels, squeezed(channels, reduction), random, dtype))),
      fc2_(register_module("fc2", std::make_unique<Linear>(squeezed(channels, reduction), channels, random, dtype))) {}

Tensor SqueezeExcitation::forward(const Tensor& input) {
  expect_dim("squeeze_excitation", input, "input", 4);
  const std::int64_t images = input.size(0), channels = input.size(1);
  const Tensor squeezed = mean(reshape(input, {images, channels, -1}), -1);
  const Tensor share = sigmoid(fc2_(relu(fc1_(squeezed))));
  return mul(input, reshape(share, {images, channels, 1, 1}));
}

SeResNeXtBlock::SeResNeXtBlock(const SeResNeXtBlockOptions& o, RandomStream& random, DType dtype)
    : conv1_(register_module("conv1", conv(o.in_channels, o.width, {.kernel = 1}, random, dtype))),
      bn1_(register_module("bn1", std::make_unique<BatchNorm2d>(o.width, dtype))),
      conv2_(register_module(
          "conv2", conv(o.width, o.width, {.stride = o.stride, .groups = o.groups}, random, dtype))),
      bn2_(register_module("bn2", std::make_unique<BatchNorm2d>(o.width, dtype))),
      conv3_(register_module("conv3", conv(o.width, o.out_channels, {.kernel = 1}, random, dtype))),
      bn3_(register_module("bn3", std::make_unique<BatchNorm2d>(o.out_channels, dtype))),
      se_(register_module("se", std::make_unique<SqueezeExcitation>(o.out_channels, o.reduction, random, dtype))),
      shortcut_(nullptr) {
  if (o.stride == 1 && o.in_channels == o.out_channels) return;
  auto shortcut = std::make_unique<Sequential>();
  shortcut->append("conv", conv(o.in_channels, o.out_channels, {.kernel = 1, .stride = o.stride}, random, dtype));
  shortcut->append("bn", std::make_unique<BatchNorm2d>(o.out_channels, dtype));
  shortcut_ = &register_module("shortcut", std::move(shortcut));
}

Tensor SeResNeXtBlock::forward(const Tensor& input) {
  const Tensor narrow = relu(bn1_(conv1_(input)));
  const Tensor grouped = relu(bn2_(conv2_(narrow)));
  const Tensor excited = se_(bn3_(conv3_(grouped)));
  return relu(add(excited, shortcut_ != nullptr ? (*shortcut_)(input) : input));
}

}  // namespace nanhunt::engine
