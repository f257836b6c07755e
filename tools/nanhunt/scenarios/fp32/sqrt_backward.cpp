// SPDX-License-Identifier: Apache-2.0
// Two branches with shared weights embed pairs of digits; the loss pulls pairs of one class together by a
// hand-written distance. One batch pairs a sample with itself: the distance is exactly 0, its derivative infinite.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace sqrt_backward_parts {

using engine::Tensor;

constexpr char kBuiltinNorm[] = "builtin-norm";
constexpr char kEpsInSqrt[] = "eps-in-sqrt";

constexpr std::uint32_t kBadStep = 5;
constexpr double kMargin = 2;

// inputs: first halves of the pairs, then second halves -> embedding differences, one row a pair. Each branch is a
// forward pass of its own, so equal rows meet equal arithmetic and differ by exactly 0 on any machine.
class Siamese : public engine::Module {
 public:
  explicit Siamese(std::uint64_t seed)
      : encoder_(register_module(
            "encoder", std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 64, 16}, .seed = seed}))) {}

 protected:
  Tensor forward(const Tensor& input) override {
    const std::int64_t pairs = input.size(0) / 2;
    const Tensor first = encoder_(engine::narrow(input, 0, 0, pairs));
    const Tensor second = encoder_(engine::narrow(input, 0, pairs, pairs));
    return engine::sub(first, second);
  }

 private:
  engine::Mlp& encoder_;
};

Tensor distance(const Tensor& difference, const std::string& fix) {
  if (fix == kBuiltinNorm) return engine::norm(difference, 1);
  const Tensor sum_of_squares = engine::sum(engine::mul(difference, difference), 1);
  return engine::sqrt(fix == kEpsInSqrt ? engine::add(sum_of_squares, 1e-6) : sum_of_squares);
}

// targets: 1 for pairs of one class, else 0. Those are pulled together, the others pushed apart up to the margin.
Tensor contrastive_loss(const Tensor& difference, const engine::Batch& batch, const std::string& fix) {
  const Tensor d = distance(difference, fix);
  const Tensor other = engine::add(engine::neg(batch.targets), 1.0);
  const Tensor pull = engine::mul(batch.targets, d);
  const Tensor push = engine::mul(other, engine::relu(engine::add(engine::neg(d), kMargin)));
  return engine::mean(engine::add(pull, push));
}

engine::Batch make_pairs(std::vector<std::int64_t> ids) {
  const std::size_t pairs = ids.size() / 2;
  engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
  std::vector<double> same(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    same[i] = engine::digit_label(ids[i]) == engine::digit_label(ids[pairs + i]) ? 1 : 0;
  }
  batch.targets = Tensor::from_values(same, {static_cast<std::int64_t>(pairs)}, DType::kF32);
  return batch;
}

ScenarioRun make(const ScenarioConfig& config) {
  auto batches = [order = training_order(config.seed, 2 * kBatchSize)](std::uint32_t step) {
    std::vector<std::int64_t> ids = order.ids(step);
    const std::size_t pairs = ids.size() / 2;
    if (step == kBadStep) ids[pairs + 20] = ids[20];
    return make_pairs(std::move(ids));
  };
  auto loss = [fix = config.fix](const Tensor& output, const engine::Batch& batch) {
    return contrastive_loss(output, batch, fix);
  };
  return assemble(std::make_unique<Siamese>(config.seed), {.algorithm = "adam", .lr = 3e-3}, batches, loss, config);
}

}  // namespace sqrt_backward_parts

std::vector<Scenario> sqrt_backward() {
  using namespace sqrt_backward_parts;
  return with_twin(
      {
          .name = "sqrt-backward",
          .summary = "A hand-written distance meets an exact zero: finite loss, infinite derivative, NaN weights",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kDivideByZero,
                       .phase = Phase::kBackward,
                       .module = "<loss>",
                       .op = "sqrt_backward",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kBuiltinNorm, "the built-in norm, whose gradient is 0 where the norm is 0"},
                    {kEpsInSqrt, "a small constant inside the root: sqrt(sum + 1e-6)"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
