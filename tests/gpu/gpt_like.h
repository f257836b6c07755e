// SPDX-License-Identifier: Apache-2.0
// Transformers in the sizes that are measured, trained under fp16 autocast with a dynamic loss scale and fused AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nanhunt/engine/trainer.h"

namespace nanhunt::gpu {

struct GptSize {
  std::string name;
  std::int64_t vocabulary, layers, dims, heads, batch, tokens;
};
// "gpt124m": GPT-2's smallest; "gpt10m" and "gpt1m": where that one is too slow or too large. nullptr: no such size.
const GptSize* find_gpt_size(const std::string& name);

// One batch of text, the same in every step.
std::unique_ptr<engine::Trainer> make_gpt_trainer(const GptSize& size, const engine::Device& device);
std::int64_t parameter_count(engine::Trainer& trainer);

}  // namespace nanhunt::gpu
