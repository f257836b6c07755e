// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpt_like.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"

namespace nanhunt::gpu {

using namespace engine;

const GptSize* find_gpt_size(const std::string& name) {
  static const std::array<GptSize, 4> kSizes{{{"gpt124m", 50257, 12, 768, 12, 8, 512},
                                              {"gpt124m-small-batch", 50257, 12, 768, 12, 2, 256},
                                              {"gpt10m", 96, 6, 384, 6, 8, 256},
                                              {"gpt1m", 96, 4, 128, 4, 4, 64}}};
  const auto found = std::find_if(kSizes.begin(), kSizes.end(), [&](const GptSize& size) { return size.name == name; });
  return found == kSizes.end() ? nullptr : &*found;
}

std::unique_ptr<Trainer> make_gpt_trainer(const GptSize& size, const Device& device) {
  GptOptions options{.vocabulary = size.vocabulary, .layers = size.layers, .block = {}, .tied = true};
  options.block.dims = size.dims;
  options.block.heads = size.heads;
  options.block.context = size.tokens;
  auto model = std::make_unique<Gpt>(options);
  model->to(device);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < size.batch; ++i) starts.push_back(i * 1000);
  Batch batch = make_text_batch(starts, size.tokens);
  batch.inputs = batch.inputs.on(device);
  batch.targets = batch.targets.on(device);
  auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "adamw",
                                                              .lr = 1e-4,
                                                              .weight_decay = 0.01,
                                                              .impl = OptimizerImpl::kFused});
  TrainerOptions training;
  training.autocast = AutocastOptions{};
  training.scaler = GradScalerOptions{.init_scale = 1024};  // no step is skipped
  return std::make_unique<Trainer>(
      std::move(model), std::move(optimizer), [batch](std::uint32_t) { return batch; }, next_token_loss, training);
}

std::int64_t parameter_count(Trainer& trainer) {
  std::int64_t count = 0;
  for (const NamedTensor& entry : trainer.model().named_parameters()) count += entry.tensor.numel();
  return count;
}

}  // namespace nanhunt::gpu
