// SPDX-License-Identifier: Apache-2.0
// Layers of transformers. Tensors are (batch, tokens, dims).
#pragma once

#include <cstdint>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {

class Linear;

// Over the last dimension; weight starts at 1, bias at 0.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t dims, DType dtype = DType::kF32, double eps = 1e-5,
                     NormStatistics statistics = NormStatistics::kOpMath);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Tensor &weight_, &bias_;
  double eps_;
  NormStatistics statistics_;
};

class Gelu : public Module {
 public:
  explicit Gelu(GeluForm form = GeluForm::kErf) : form_(form) {}

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  GeluForm form_;
};

// Nothing at p = 0 or outside training.
class Dropout : public Module {
 public:
  Dropout(double p, RandomStream stream);

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  double p_;
  RandomStream& random_;
};

struct TransformerOptions {
  std::int64_t dims = 64, heads = 4;  // heads divide dims
  std::int64_t context = 64;          // most tokens at once
  bool causal = true;                 // no token looks at later ones
  double dropout = 0;                 // of attention weights and of what each half of a block adds
  GeluForm gelu = GeluForm::kErf;
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;             // of weights and dropout
};

class MultiHeadAttention : public Module {
 public:
  // Weights from `random`; dropout from stream `dropout_stream` of the same seed.
  MultiHeadAttention(const TransformerOptions& options, RandomStream& random, std::uint64_t dropout_stream);
  // bool (batch, tokens), true: padding at which nobody looks. Stays until it is set again; undefined: none.
  void set_key_mask(Tensor mask) { key_mask_ = std::move(mask); }

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Tensor split_heads(const Tensor& input) const;  // (batch, heads, tokens, dims / heads)
  std::int64_t heads_, context_;
  double dropout_;
  Linear &query_, &key_, &value_, &out_;
  Tensor* later_;  // (context, context), true after the diagonal; null when not causal
  RandomStream& random_;
  Tensor key_mask_;
};

// x + attention(norm1(x)), then x + fc2(gelu(fc1(norm2(x)))), fc1 four times as wide.
class TransformerBlock : public Module {
 public:
  TransformerBlock(const TransformerOptions& options, RandomStream& random, std::uint64_t dropout_stream);
  void set_key_mask(Tensor mask) { attention_.set_key_mask(std::move(mask)); }

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  LayerNorm& norm1_;
  MultiHeadAttention& attention_;
  Dropout& dropout1_;
  LayerNorm& norm2_;
  Linear& fc1_;
  Gelu& gelu_;
  Linear& fc2_;
  Dropout& dropout2_;
};

}  // namespace nanhunt::engine
