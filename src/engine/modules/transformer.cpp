// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/transformer.h"

#include "nanhunt/engine/modules.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

Tensor after_diagonal(std::int64_t size) {
  Tensor mask = Tensor::zeros({size, size}, DType::kBool);
  for (std::int64_t t = 0; t < size; ++t) {
    for (std::int64_t s = t + 1; s < size; ++s) mask.data<std::uint8_t>()[t * size + s] = 1;
  }
  return mask;
}

std::int64_t checked_heads(const TransformerOptions& options) {
  if (options.heads < 1 || options.dims < 1 || options.dims % options.heads != 0) {
    fail("attention", "heads that divide dims", std::to_string(options.heads) + " and " + std::to_string(options.dims));
  }
  return options.heads;
}

double checked_probability(double p) {
  if (!(p >= 0 && p <= 1)) fail("dropout", "p in [0, 1]", std::to_string(p));
  return p;
}

}  // namespace

LayerNorm::LayerNorm(std::int64_t dims, DType dtype, double eps, NormStatistics statistics)
    : weight_(register_parameter("weight", Tensor::full({dims}, 1, dtype))),
      bias_(register_parameter("bias", Tensor::zeros({dims}, dtype))),
      eps_(eps),
      statistics_(statistics) {}

Tensor LayerNorm::forward(const Tensor& input) { return layer_norm(input, weight_, bias_, eps_, statistics_); }

Tensor Gelu::forward(const Tensor& input) { return gelu(input, form_); }

Dropout::Dropout(double p, RandomStream stream)
    : p_(checked_probability(p)), random_(register_random(std::move(stream))) {}

Tensor Dropout::forward(const Tensor& input) {
  return training() && p_ > 0 ? dropout(input, p_, random_) : input;
}

MultiHeadAttention::MultiHeadAttention(const TransformerOptions& options, RandomStream& random,
                                       std::uint64_t dropout_stream)
    : heads_(checked_heads(options)),
      context_(options.context),
      dropout_(checked_probability(options.dropout)),
      query_(register_module("query", std::make_unique<Linear>(options.dims, options.dims, random, options.dtype))),
      key_(register_module("key", std::make_unique<Linear>(options.dims, options.dims, random, options.dtype))),
      value_(register_module("value", std::make_unique<Linear>(options.dims, options.dims, random, options.dtype))),
      out_(register_module("out", std::make_unique<Linear>(options.dims, options.dims, random, options.dtype))),
      later_(options.causal ? &register_buffer("later", after_diagonal(options.context)) : nullptr),
      random_(register_random(RandomStream(options.seed, dropout_stream))) {}

Tensor MultiHeadAttention::split_heads(const Tensor& input) const {
  return transpose(reshape(input, {input.size(0), input.size(1), heads_, -1}), 1, 2);
}

Tensor MultiHeadAttention::forward(const Tensor& input) {
  expect_dim("attention", input, "input", 3);
  const std::int64_t batch = input.size(0), tokens = input.size(1);
  if (tokens > context_) fail("attention", "at most " + std::to_string(context_) + " tokens", describe(input));
  AttentionOptions options;
  if (later_ != nullptr) {
    options.mask = tokens == context_ ? *later_ : narrow(narrow(*later_, 0, 0, tokens), 1, 0, tokens);
  }
  if (key_mask_.defined()) options.key_mask = reshape(key_mask_, {batch, 1, 1, tokens});
  options.dropout = training() ? dropout_ : 0;
  options.random = &random_;
  const Tensor mixed = scaled_dot_product_attention(split_heads(query_(input)), split_heads(key_(input)),
                                                    split_heads(value_(input)), options);
  return out_(reshape(transpose(mixed, 1, 2), {batch, tokens, -1}));
}

TransformerBlock::TransformerBlock(const TransformerOptions& options, RandomStream& random,
                                   std::uint64_t dropout_stream)
    : norm1_(register_module("norm1", std::make_unique<LayerNorm>(options.dims, options.dtype))),
      attention_(register_module("attention",
                                 std::make_unique<MultiHeadAttention>(options, random, dropout_stream))),
      dropout1_(register_module(
          "dropout1", std::make_unique<Dropout>(options.dropout, RandomStream(options.seed, dropout_stream + 1)))),
      norm2_(register_module("norm2", std::make_unique<LayerNorm>(options.dims, options.dtype))),
      fc1_(register_module("fc1", std::make_unique<Linear>(options.dims, 4 * options.dims, random, options.dtype))),
      gelu_(register_module("gelu", std::make_unique<Gelu>(options.gelu))),
      fc2_(register_module("fc2", std::make_unique<Linear>(4 * options.dims, options.dims, random, options.dtype))),
      dropout2_(register_module(
          "dropout2", std::make_unique<Dropout>(options.dropout, RandomStream(options.seed, dropout_stream + 2)))) {}

Tensor TransformerBlock::forward(const Tensor& input) {
  const Tensor mixed = add(input, dropout1_(attention_(norm1_(input))));
  return add(mixed, dropout2_(fc2_(gelu_(fc1_(norm2_(mixed))))));
}

}  // namespace nanhunt::engine
