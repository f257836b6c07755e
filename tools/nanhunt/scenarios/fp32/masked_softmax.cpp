// SPDX-License-Identifier: Apache-2.0
// Attention over the rows of an image, each row seeing those above it (pytorch/pytorch#41508, #27968). One image is
// padded above its first row, so its first queries see no key at all and the softmax over a row of -Inf is 0/0. Padded
// positions are dropped before the loss, which stays finite; their gradient is 0, and 0 * NaN is NaN all the same.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace masked_softmax_parts {

using engine::Tensor;

constexpr char kKeepOneKey[] = "keep-one-key";
constexpr char kFiniteMask[] = "finite-mask";

constexpr std::uint32_t kBadStep = 9;
constexpr std::int64_t kTokens = 8, kWidth = 8, kHeadSize = 16;
constexpr std::int64_t kPadded = 2;
constexpr double kPadding = -1;  // pixels are 0 to 1

// (T, T): 1 where hidden(query, key), else 0.
template <typename F>
Tensor square_mask(DType dtype, const F& hidden) {
  std::vector<double> mask;
  for (std::int64_t query = 0; query < kTokens; ++query) {
    for (std::int64_t key = 0; key < kTokens; ++key) mask.push_back(hidden(query, key) ? 1 : 0);
  }
  return Tensor::from_values(mask, {kTokens, kTokens}, dtype);
}

class RowAttention : public engine::Module {
 public:
  RowAttention(engine::RandomStream& random, std::string fix)
      : query_(register_module("query", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        key_(register_module("key", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        value_(register_module("value", std::make_unique<engine::Linear>(kWidth, kHeadSize, random))),
        future_(square_mask(DType::kBool, [](auto query, auto key) { return key > query; })),
        others_(square_mask(DType::kF32, [](auto query, auto key) { return key != query; })),
        fix_(std::move(fix)) {}

 protected:
  Tensor forward(const Tensor& images) override {
    const std::int64_t n = images.size(0);
    const Tensor rows = engine::reshape(images, {n * kTokens, kWidth});
    const auto tokens = [&](engine::Linear& layer) { return engine::reshape(layer(rows), {n, kTokens, kHeadSize}); };
    const Tensor sums = engine::sum(engine::reshape(images, {n, kTokens, kWidth}), -1, /*keepdim=*/true);
    const Tensor padded = engine::eq(sums, kPadding * kWidth);
    engine::AttentionOptions options;
    future_ = future_.on(images.device());  // once
    others_ = others_.on(images.device());
    options.mask = future_;
    options.key_mask = engine::reshape(padded, {n, 1, kTokens});
    if (fix_ == kFiniteMask) options.key_mask = engine::mul(engine::to(options.key_mask, DType::kF32), -1e4);
    if (fix_ == kKeepOneKey) {
      options.key_mask = engine::gt(engine::mul(engine::to(options.key_mask, DType::kF32), others_), 0);
    }
    const Tensor out = engine::scaled_dot_product_attention(tokens(query_), tokens(key_), tokens(value_), options);
    return engine::mean(engine::masked_fill(out, padded, 0), 1);
  }

 private:
  engine::Linear &query_, &key_, &value_;
  Tensor future_, others_;
  std::string fix_;
};

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("attention", std::make_unique<RowAttention>(random, config.fix));
  model->append("head", std::make_unique<engine::Linear>(kHeadSize, engine::kDigitsClasses, random));

  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t padded_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, padded_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    for (std::int64_t pixel = 0; pixel < kPadded * kWidth; ++pixel) set_pixel(batch, padded_id, pixel, kPadding);
    return batch;
  };
  return assemble(std::move(model), {.algorithm = "adam", .lr = 3e-2}, batches, classification_loss, config);
}

}  // namespace masked_softmax_parts

std::vector<Scenario> masked_softmax() {
  using namespace masked_softmax_parts;
  return with_twin(
      {
          .name = "masked-softmax",
          .summary = "Padding and a causal mask leave a query without a key: the softmax of that row is 0/0, the loss "
                     "stays finite",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kInvalid,
                       .phase = Phase::kForward,
                       .module = "attention",
                       .op = "softmax",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kKeepOneKey, "each position sees itself, padded or not"},
                    {kFiniteMask, "-1e4 added where a key is masked, in place of -Inf"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
