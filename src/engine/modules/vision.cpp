// SPDX-License-Identifier: Apache-2.0
// Layers for images.
#include <cmath>

#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// Input channels of one group.
std::int64_t share_of(std::int64_t in_channels, std::int64_t groups) {
  if (groups < 1 || in_channels % groups != 0) {
    fail("conv2d", "groups that divide the input channels",
         std::to_string(groups) + " of " + std::to_string(in_channels));
  }
  return in_channels / groups;
}

double init_bound(std::int64_t in_channels, std::int64_t kernel) {
  const std::int64_t inputs = in_channels * kernel * kernel;
  if (in_channels < 1 || kernel < 1) {
    fail("conv2d", "1 or more input channels and a window of 1 or more",
         std::to_string(in_channels) + " and " + std::to_string(kernel));
  }
  return 1 / std::sqrt(static_cast<double>(inputs));
}

Tensor initial(const Shape& sizes, std::int64_t in_channels, const Conv2dOptions& options, DType dtype,
               RandomStream& random) {
  const double bound = init_bound(share_of(in_channels, options.groups), options.kernel);
  return uniform_tensor(sizes, -bound, bound, dtype, random);
}

}  // namespace

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, const Conv2dOptions& options, RandomStream& random,
               DType dtype)
    : weight_(register_parameter("weight", initial({out_channels, share_of(in_channels, options.groups), options.kernel,
                                                    options.kernel},
                                                   in_channels, options, dtype, random))),
      bias_(options.with_bias
                ? &register_parameter("bias", initial({out_channels}, in_channels, options, dtype, random))
                : nullptr),
      stride_(options.stride),
      padding_(options.padding == -1 ? options.kernel / 2 : options.padding),
      groups_(options.groups) {}

Tensor Conv2d::forward(const Tensor& input) {
  return conv2d(input, weight_, bias_ ? *bias_ : Tensor(), stride_, padding_, groups_);
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, DType dtype, double momentum, double eps, NormStatistics statistics)
    : weight_(register_parameter("weight", Tensor::full({channels}, 1, dtype))),
      bias_(register_parameter("bias", Tensor::zeros({channels}, dtype))),
      running_mean_(register_buffer("running_mean", Tensor::zeros({channels}, dtype))),
      running_var_(register_buffer("running_var", Tensor::full({channels}, 1, dtype))),
      momentum_(momentum),
      eps_(eps),
      statistics_(statistics) {}

Tensor BatchNorm2d::forward(const Tensor& input) {
  return batch_norm(input, weight_, bias_, running_mean_, running_var_, training(), momentum_, eps_,
                    statistics_);
}

Tensor MaxPool2d::forward(const Tensor& input) { return max_pool2d(input, kernel_); }

Tensor AvgPool2d::forward(const Tensor& input) { return avg_pool2d(input, kernel_); }

Tensor Upsample::forward(const Tensor& input) { return upsample_nearest2d(input, scale_); }

Tensor Flatten::forward(const Tensor& input) { return flatten(input, 1); }

ResidualBlock::ResidualBlock(std::int64_t channels, RandomStream& random, DType dtype)
    : conv1_(register_module("conv1", std::make_unique<Conv2d>(channels, channels, Conv2dOptions{.with_bias = false},
                                                               random, dtype))),
      bn1_(register_module("bn1", std::make_unique<BatchNorm2d>(channels, dtype))),
      relu1_(register_module("relu1", std::make_unique<Relu>())),
      conv2_(register_module("conv2", std::make_unique<Conv2d>(channels, channels, Conv2dOptions{.with_bias = false},
                                                               random, dtype))),
      bn2_(register_module("bn2", std::make_unique<BatchNorm2d>(channels, dtype))),
      relu2_(register_module("relu2", std::make_unique<Relu>())) {}

Tensor ResidualBlock::forward(const Tensor& input) {
  const Tensor inner = relu1_(bn1_(conv1_(input)));
  return relu2_(add(bn2_(conv2_(inner)), input));
}

}  // namespace nanhunt::engine
