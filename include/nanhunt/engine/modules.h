// SPDX-License-Identifier: Apache-2.0
// The bundled layers. Initial weights come from a RandomStream in registration order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/module.h"
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

// indices (...) -> (..., dim). weight (count, dim) starts in N(0, 1).
class Embedding : public Module {
 public:
  Embedding(std::int64_t count, std::int64_t dim, RandomStream& random, DType dtype = DType::kF32);

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

}  // namespace nanhunt::engine
