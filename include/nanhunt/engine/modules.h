// SPDX-License-Identifier: Apache-2.0
// The bundled layers. Initial weights come from a RandomStream in registration order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"

namespace nanhunt::engine {

// input (M, in) -> (M, out). weight (out, in) and bias (out) start in U(-1/sqrt(in), 1/sqrt(in)).
class Linear : public Module {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, RandomStream& random, DType dtype = DType::kF32,
         bool with_bias = true);
  const Tensor& weight() const { return weight_; }

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Tensor& weight_;
  Tensor* bias_;  // null without
};

class Relu : public Module {
 protected:
  Tensor forward(const Tensor& input) override;
};

class Tanh : public Module {
 protected:
  Tensor forward(const Tensor& input) override;
};

// indices (...) -> (..., dim). weight (count, dim) starts in N(0, stddev).
class Embedding : public Module {
 public:
  Embedding(std::int64_t count, std::int64_t dim, RandomStream& random, DType dtype = DType::kF32, double stddev = 1);
  const Tensor& weight() const { return weight_; }

 protected:
  Tensor forward(const Tensor& indices) override;

 private:
  Tensor& weight_;
};

// Children one after the other, named by the caller ("fc1") or by their number ("0").
class Sequential : public Module {
 public:
  template <typename M>
  M& append(std::string name, std::unique_ptr<M> child) {
    M& ref = register_module(std::move(name), std::move(child));
    steps_.push_back(&ref);
    return ref;
  }
  template <typename M>
  M& append(std::unique_ptr<M> child) {
    return append(std::to_string(steps_.size()), std::move(child));
  }

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  std::vector<Module*> steps_;  // owned by Module
};

// Images (N, C, H, W) from here on. Weight (out, in / groups, kernel, kernel) and bias start in U(-b, b) with b = 1 /
// sqrt(in / groups * kernel * kernel). `padding` -1 keeps the size at stride 1 (odd kernels).
struct Conv2dOptions {
  std::int64_t kernel = 3, stride = 1, padding = -1, groups = 1;
  bool with_bias = true;
};
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, const Conv2dOptions& options, RandomStream& random,
         DType dtype = DType::kF32);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Tensor& weight_;
  Tensor* bias_;  // null without
  std::int64_t stride_, padding_, groups_;
};

// Batch statistics in training, running ones otherwise (buffers running_mean, running_var). Weight 1 and bias 0 at
// first. Takes inputs of its own dtype, and 16-bit ones while it is fp32.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t channels, DType dtype = DType::kF32, double momentum = 0.1, double eps = 1e-5,
                       NormStatistics statistics = NormStatistics::kOpMath);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Tensor &weight_, &bias_, &running_mean_, &running_var_;
  double momentum_, eps_;
  NormStatistics statistics_;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(std::int64_t kernel) : kernel_(kernel) {}

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  std::int64_t kernel_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(std::int64_t kernel) : kernel_(kernel) {}

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  std::int64_t kernel_;
};

// Nearest neighbour.
class Upsample : public Module {
 public:
  explicit Upsample(std::int64_t scale) : scale_(scale) {}

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  std::int64_t scale_;
};

// (N, ...) -> (N, rest).
class Flatten : public Module {
 protected:
  Tensor forward(const Tensor& input) override;
};

// Squeeze and excitation: x times sigmoid(fc2(relu(fc1(mean of each channel)))), a number for each image and channel.
// fc1 has channels / reduction outputs, one at least. Both have a bias.
class SqueezeExcitation : public Module {
 public:
  SqueezeExcitation(std::int64_t channels, std::int64_t reduction, RandomStream& random, DType dtype = DType::kF32);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Module &fc1_, &fc2_;
};

// A block of SE-ResNeXt: relu(se(bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x)))))))) + x), where conv1 and conv3 are
// 1 x 1 and conv2, `width` channels wide, has `groups`. Where channels or size change, x goes through bn(conv) of its
// own (`shortcut`).
struct SeResNeXtBlockOptions {
  std::int64_t in_channels = 16, width = 16, out_channels = 16, groups = 4, stride = 1, reduction = 4;
};
class SeResNeXtBlock : public Module {
 public:
  SeResNeXtBlock(const SeResNeXtBlockOptions& options, RandomStream& random, DType dtype = DType::kF32);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Module &conv1_, &bn1_, &conv2_, &bn2_, &conv3_, &bn3_, &se_;
  Module* shortcut_;  // null: x as it is
};

// relu(bn2(conv2(relu(bn1(conv1(x))))) + x), sizes unchanged.
class ResidualBlock : public Module {
 public:
  ResidualBlock(std::int64_t channels, RandomStream& random, DType dtype = DType::kF32);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Module &conv1_, &bn1_, &relu1_, &conv2_, &bn2_, &relu2_;
};

}  // namespace nanhunt::engine
