// SPDX-License-Identifier: Apache-2.0
// Small ready-made models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/engine/transformer.h"

namespace nanhunt::engine {

struct MlpOptions {
  std::vector<std::int64_t> sizes = {64, 64, 32, 10};  // input, hidden ..., output
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;  // of the initial weights; the same numbers, rounded once, whatever the dtype
};

// fc1, relu1, fc2, relu2, ..., fcN.
class Mlp : public Sequential {
 public:
  explicit Mlp(const MlpOptions& options = {});
};

struct CnnOptions {
  std::int64_t channels = 16;
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;
};

// Digits as 8 x 8 images (input (N, 64)): conv1, bn1, relu1, block (residual), pool1 (max), conv2 (twice the channels),
// bn2, relu2, pool2 (average), flatten, fc -> (N, 10).
class Cnn : public Sequential {
 public:
  explicit Cnn(const CnnOptions& options = {});

 protected:
  Tensor forward(const Tensor& input) override;
};

struct SeResNeXtOptions {
  std::int64_t channels = 16, groups = 4, reduction = 4;
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;
};

// Digits as 8 x 8 images (input (N, 64)): conv, bn, relu; block1 keeps size and channels, block2 halves the size and
// doubles the channels, block3 keeps both; pool (average over what is left), flatten, fc -> (N, 10).
class SeResNeXt : public Sequential {
 public:
  explicit SeResNeXt(const SeResNeXtOptions& options = {});

 protected:
  Tensor forward(const Tensor& input) override;
};

// 8 x 8 images to 8 x 8 images, both as (N, 64). Two levels down (max pool), two up (upsample, then cat with the same
// size from the way down); each level is conv, bn, relu; `out` is a 1 x 1 convolution.
struct UNetOptions {
  std::int64_t channels = 8;  // of the top level; each level down doubles them
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;
};
class UNet : public Module {
 public:
  explicit UNet(const UNetOptions& options = {});

 protected:
  Tensor forward(const Tensor& input) override;

 private:
  Module& add_level(const std::string& name, std::int64_t in_channels, std::int64_t out_channels);
  RandomStream random_;  // of the initial weights
  DType dtype_;
  Module &down1_, &pool1_, &down2_, &pool2_, &bottom_, &up2_, &merge2_, &up1_, &merge1_, &out_;
};

struct GptOptions {
  std::int64_t vocabulary = 96, layers = 6;
  TransformerOptions block;   // causal
  bool tied = false;          // the head uses the token embedding's weight
};

// Tokens int64 (batch, tokens) -> logits (batch, tokens, vocabulary): token and learned position embeddings, dropout,
// block0 ..., norm, head.
class Gpt : public Module {
 public:
  explicit Gpt(const GptOptions& options = {}) : Gpt(options, RandomStream(options.block.seed, /*stream=*/0)) {}
  void set_key_mask(const Tensor& mask);  // see MultiHeadAttention

 protected:
  Tensor forward(const Tensor& tokens) override;

 private:
  Gpt(const GptOptions& options, RandomStream random);
  std::int64_t context_;
  Embedding &token_, &position_;
  Dropout& dropout_;
  std::vector<TransformerBlock*> blocks_;
  LayerNorm& norm_;
  Linear* head_;  // null when tied
};

// Mean cross entropy of the logits of every token.
Tensor next_token_loss(const Tensor& logits, const Batch& batch);

}  // namespace nanhunt::engine
