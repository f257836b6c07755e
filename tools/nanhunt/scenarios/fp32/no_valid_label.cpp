// SPDX-License-Identifier: Apache-2.0
// Instruction tuning (pytorch/pytorch#70348, meta-pytorch/torchtune#2341): the labels of the prompt are ignored. In one
// batch the prompts fill their windows and the answers are cut off, so no label is left and the mean of the loss is
// 0/0.
#include <algorithm>

#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace no_valid_label_parts {

using engine::Tensor;

constexpr char kSkip[] = "skip-unlabelled";
constexpr char kAtLeastOne[] = "divide-by-at-least-1";

constexpr std::uint32_t kBadStep = 11;
constexpr std::int64_t kBatch = 8, kTokens = 32, kPrompt = 8, kWidth = 32;
constexpr std::int64_t kIgnored = -100;

// Tokens of the prompt; the rest of the window is the answer.
std::int64_t prompt_length(std::uint32_t step, std::int64_t row) {
  return step == kBadStep ? kTokens : kPrompt + row;
}

engine::Batch ignore_prompts(engine::Batch batch, std::uint32_t step) {
  auto* labels = static_cast<std::int64_t*>(batch.targets.raw());
  for (std::int64_t row = 0; row < kBatch; ++row) {
    std::fill_n(labels + row * kTokens, prompt_length(step, row), kIgnored);
  }
  return batch;
}

// The mean over the labels that count, and 0 where there are none.
Tensor guarded_loss(const Tensor& logits, const Tensor& labels) {
  const std::int64_t rows = labels.numel(), classes = logits.size(-1);
  std::vector<double> one_hot(static_cast<std::size_t>(rows * classes));
  const std::vector<std::int64_t> numbers = labels.to_indices();
  double counted = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t label = numbers[static_cast<std::size_t>(i)];
    if (label == kIgnored) continue;
    one_hot[static_cast<std::size_t>(i * classes + label)] = 1;
    ++counted;
  }
  const Tensor chosen = Tensor::from_values(one_hot, {rows, classes}, DType::kF32).on(logits.device());
  const Tensor total = engine::sum(engine::mul(engine::log_softmax(logits, 1), chosen));
  return engine::div(engine::neg(total), std::max(counted, 1.0));
}

ScenarioRun make(const ScenarioConfig& config) {
  auto batches = [text = engine::text_train_batches(kBatch, kTokens, config.seed),
                  skip = config.fix == kSkip](std::uint32_t step) {
    // A skipped batch makes room for one that the run does not see otherwise.
    constexpr std::uint32_t kUnused = 1u << 20;
    return skip && step == kBadStep ? ignore_prompts(text(step + kUnused), step + kUnused)
                                    : ignore_prompts(text(step), step);
  };
  auto loss = [guarded = config.fix == kAtLeastOne](const Tensor& output, const engine::Batch& batch) {
    const Tensor logits = engine::reshape(output, {-1, output.size(-1)});
    const Tensor labels = engine::reshape(batch.targets, {-1});
    return guarded ? guarded_loss(logits, labels) : engine::cross_entropy(logits, labels, kIgnored);
  };
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("embedding", std::make_unique<engine::Embedding>(engine::kTextTokens, kWidth, random));
  model->append("head", std::make_unique<engine::Linear>(kWidth, engine::kTextTokens, random));
  return assemble(std::move(model), {.algorithm = "adam", .lr = 3e-2}, batches, loss, config);
}

}  // namespace no_valid_label_parts

std::vector<Scenario> no_valid_label() {
  using namespace no_valid_label_parts;
  return with_twin(
      {
          .name = "no-valid-label",
          .summary = "Prompts fill their windows: every label of one batch is ignored and the mean loss is 0/0",
          .steps = 80,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kDivideByZero,
                       .phase = Phase::kLoss,
                       .module = "<loss>",
                       .op = "nll_loss",
                       .step = kBadStep,
                       .samples =
                           engine::text_train_batches(kBatch, kTokens, ScenarioConfig{}.seed)(kBadStep).sample_ids},
          .fixes = {{kSkip, "batches without a label that counts left out by the loader"},
                    {kAtLeastOne, "the sum of the losses divided by the number of labels, or by 1"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
