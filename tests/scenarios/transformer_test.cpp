// SPDX-License-Identifier: Apache-2.0
// A transformer writes -Inf into its scores on purpose, in every layer and step. That is no finding, and the one row
// that is hidden whole is.
#include <gtest/gtest.h>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "tests/scenarios/hunt_scenario.h"

namespace nanhunt {
namespace {

using testing_support::Hunt;

constexpr std::int64_t kBatch = 4, kTokens = 16;

// fp16 autocast with dropout; the last `padded` tokens of the last sample are padding.
scenarios::ScenarioRun make_run(std::int64_t padded) {
  engine::GptOptions options{.layers = 2, .block = {}};
  options.block.dims = 32;
  options.block.context = kTokens;
  options.block.dropout = 0.1;
  options.block.causal = false;
  auto model = std::make_unique<engine::Gpt>(options);
  std::vector<double> mask(kBatch * kTokens, 0);
  std::fill(mask.end() - padded, mask.end(), 1);
  model->set_key_mask(engine::Tensor::from_values(mask, {kBatch, kTokens}, DType::kBool));
  auto optimizer = engine::make_optimizer(model->named_parameters(), {.algorithm = "adamw", .lr = 1e-3});
  engine::TrainerOptions trainer_options;
  trainer_options.autocast = engine::AutocastOptions{};
  return {std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer),
                                            engine::text_train_batches(kBatch, kTokens, 1), engine::next_token_loss,
                                            trainer_options),
          {}};
}

Hunt hunt(std::int64_t padded) {
  scenarios::Scenario scenario;
  scenario.name = "transformer";
  scenario.steps = 3;
  scenario.make = [padded](const scenarios::ScenarioConfig&) { return make_run(padded); };
  return testing_support::hunt_scenario(scenario);
}

TEST(Transformer, that_hides_padding_is_clean) {
  const Hunt result = hunt(5);
  EXPECT_EQ(verdict_status_name(result.analysis.verdict.status), verdict_status_name(VerdictStatus::kClean))
      << result.analysis.verdict.headline;
}

TEST(Transformer, with_a_sample_that_is_all_padding_is_a_fault_of_softmax) {
  const Hunt result = hunt(kTokens);
  ASSERT_EQ(verdict_status_name(result.analysis.verdict.status), verdict_status_name(VerdictStatus::kFault));
  const Finding& finding = result.analysis.findings.front();
  EXPECT_EQ(finding.place.op, "softmax");
  EXPECT_EQ(finding.place.module, "block0.attention");
  EXPECT_EQ(phase_name(finding.place.phase), phase_name(Phase::kForward));
  EXPECT_EQ(finding.place.step, 0U);
}

}  // namespace
}  // namespace nanhunt
