// SPDX-License-Identifier: Apache-2.0
// Attention over the rows of an image, in which blank rows are masked as padding is in text. One image is blank
// altogether: every key is masked and the softmax over that row of -Inf is 0/0. The -Inf itself is meant.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace {

using engine::Tensor;

constexpr char kFiniteMask[] = "finite-mask";

constexpr std::uint32_t kBadStep = 9;
constexpr std::int64_t kTokens = 8, kWidth = 8, kHeadSize = 16;

class RowAttention : public engine::Module {
 public:
  RowAttention(engine::RandomStream& random, std::string fix)
      : query_(register_module("query", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        key_(register_module("key", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        value_(register_module("value", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        fix_(std::move(fix)) {}

 protected:
  Tensor forward(const Tensor& images) override {
    const std::int64_t n = images.size(0);
    const Tensor rows = engine::reshape(images, {n * kTokens, kWidth});
    const auto tokens = [&](engine::Linear& layer) { return engine::reshape(layer(rows), {n, kTokens, kHeadSize}); };
    const Tensor blank = engine::eq(engine::sum(engine::reshape(images, {n, kTokens, kWidth}), -1), 0);
    Tensor hidden = engine::reshape(blank, {n, 1, kTokens});
    if (fix_ == kFiniteMask) hidden = engine::mul(engine::to(hidden, DType::kF32), -1e4);
    engine::AttentionOptions options;
    options.key_mask = hidden;
    return engine::mean(engine::scaled_dot_product_attention(tokens(query_), tokens(key_), tokens(value_), options), 1);
  }

 private:
  engine::Linear &query_, &key_, &value_;
  std::string fix_;
};

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("attention", std::make_unique<RowAttention>(random, config.fix));
  model->append("head", std::make_unique<engine::Linear>(kHeadSize, engine::kDigitsClasses, random));

  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t blank_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, blank_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    scale_sample(batch, blank_id, 0);
    return batch;
  };
  return assemble(std::move(model), {.algorithm = "adam", .lr = 3e-2}, batches, classification_loss, config);
}

}  // namespace

std::vector<Scenario> masked_softmax() {
  return with_twin(
      {
          .name = "masked-softmax",
          .summary = "One sample of padding alone: attention masks every key and the softmax of that row is 0/0",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kInvalid,
                       .phase = Phase::kForward,
                       .module = "attention",
                       .op = "softmax",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kFiniteMask, "-1e4 added where a key is masked, in place of -Inf"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
