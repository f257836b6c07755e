// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

constexpr double kEmbeddingStddev = 0.02;
// Dropout draws from streams that nothing else uses; a block has three.
constexpr std::uint64_t kDropoutStreams = std::uint64_t{1} << 34;

}  // namespace

Gpt::Gpt(const GptOptions& options, RandomStream random)
    : context_(options.block.context),
      token_(register_module("token", std::make_unique<Embedding>(options.vocabulary, options.block.dims, random,
                                                                  options.block.dtype, kEmbeddingStddev))),
      position_(register_module("position", std::make_unique<Embedding>(context_, options.block.dims, random,
                                                                        options.block.dtype, kEmbeddingStddev))),
      dropout_(register_module(
          "dropout",
          std::make_unique<Dropout>(options.block.dropout, RandomStream(options.block.seed, kDropoutStreams)))),
      norm_(register_module("norm", std::make_unique<LayerNorm>(options.block.dims, options.block.dtype))),
      head_(nullptr) {
  if (options.layers < 1) fail("gpt", "1 layer or more", std::to_string(options.layers));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const std::uint64_t streams = kDropoutStreams + 1 + 3 * static_cast<std::uint64_t>(layer);
    blocks_.push_back(&register_module("block" + std::to_string(layer),
                                       std::make_unique<TransformerBlock>(options.block, random, streams)));
  }
  if (!options.tied) {
    head_ = &register_module("head", std::make_unique<Linear>(options.block.dims, options.vocabulary, random,
                                                              options.block.dtype, /*with_bias=*/false));
  }
}

void Gpt::set_key_mask(const Tensor& mask) {
  for (TransformerBlock* block : blocks_) block->set_key_mask(mask);
}

Tensor Gpt::forward(const Tensor& tokens) {
  expect_dtype("gpt", tokens, "tokens", DType::kI64);
  expect_dim("gpt", tokens, "tokens", 2);
  if (tokens.size(1) > context_) fail("gpt", "at most " + std::to_string(context_) + " tokens", describe(tokens));
  std::vector<std::int64_t> places(static_cast<std::size_t>(tokens.size(1)));
  std::iota(places.begin(), places.end(), 0);
  Tensor value = dropout_(add(token_(tokens), position_(Tensor::from_indices(places, {tokens.size(1)}))));
  for (TransformerBlock* block : blocks_) value = (*block)(value);
  value = norm_(value);
  return head_ != nullptr ? (*head_)(value) : linear(value, token_.weight(), {});
}

Tensor next_token_loss(const Tensor& logits, const Batch& batch) {
  return cross_entropy(reshape(logits, {-1, logits.size(-1)}), reshape(batch.targets, {-1}));
}

}  // namespace nanhunt::engine
