// SPDX-License-Identifier: Apache-2.0
// Stock mixed precision forms every x + eps in fp32: the eps audit of real runs says so, and says nothing more.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "tests/scenarios/hunt_scenario.h"
#include "tools/nanhunt/scenarios/build.h"

namespace nanhunt {
namespace {

using engine::OptimizerImpl;
using testing_support::Hunt;

engine::OptimizerOptions adamw(OptimizerImpl impl, bool masters) {
  engine::OptimizerOptions options;
  options.algorithm = "adamw";
  options.weight_decay = 0.01;
  options.impl = impl;
  options.fp32_masters = masters;
  return options;
}

scenarios::ScenarioRun autocast_run(std::unique_ptr<engine::Module> model, OptimizerImpl impl,
                                    engine::BatchSource batches, engine::LossFunction loss) {
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 1024};
  auto optimizer = engine::make_optimizer(model->named_parameters(), adamw(impl, /*masters=*/false));
  return {std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer), std::move(batches),
                                            std::move(loss), options),
          {}};
}

Analysis train(const std::function<scenarios::ScenarioRun()>& make) {
  scenarios::Scenario scenario;
  scenario.name = "eps-audit";
  scenario.steps = 5;
  scenario.make = [&](const scenarios::ScenarioConfig&) { return make(); };
  testing_support::HuntOptions options;
  return testing_support::hunt_scenario(scenario, options).analysis;
}

void expect_silent(const Analysis& analysis, const std::vector<std::string>& audited) {
  EXPECT_EQ(verdict_status_name(analysis.verdict.status), "clean") << analysis.verdict.headline;
  EXPECT_TRUE(analysis.findings.empty()) << analysis.findings.front().title;
  for (const EpsAuditRow& row : analysis.eps_audit) {
    EXPECT_EQ(row.verdict, "ok") << row.where << " in " << dtype_name(row.dtype);
    EXPECT_EQ(row.dtype, DType::kF32) << row.where;
    EXPECT_EQ(row.zero_denominators, 0u) << row.where;
  }
  for (const std::string& name : audited) {
    EXPECT_TRUE(std::any_of(analysis.eps_audit.begin(), analysis.eps_audit.end(), [&](const EpsAuditRow& row) {
      return row.where.find(name) != std::string::npos;
    })) << name << " is not in the audit";
  }
}

constexpr OptimizerImpl kImpls[] = {OptimizerImpl::kForLoop, OptimizerImpl::kFused};
std::string optimizer_op(OptimizerImpl impl) {
  return impl == OptimizerImpl::kFused ? "optimizer _fused_adamw_" : "optimizer add_";
}

TEST(EpsAuditOfRuns, layer_norm_under_fp16_autocast_is_silent) {
  for (const OptimizerImpl impl : kImpls) {
    const Analysis analysis = train([&] {
      engine::GptOptions options{.layers = 1, .block = {}};
      options.block.dims = 32;
      options.block.context = 16;
      return autocast_run(std::make_unique<engine::Gpt>(options), impl, engine::text_train_batches(4, 16, 1),
                          engine::next_token_loss);
    });
    expect_silent(analysis, {"forward native_layer_norm", optimizer_op(impl)});
  }
}

TEST(EpsAuditOfRuns, batch_norm_under_fp16_autocast_is_silent) {
  for (const OptimizerImpl impl : kImpls) {
    const Analysis analysis = train([&] {
      return autocast_run(std::make_unique<engine::Cnn>(engine::CnnOptions{.channels = 4}), impl,
                          engine::digits_train_batches(16, 1, DType::kF32), scenarios::classification_loss);
    });
    expect_silent(analysis, {"forward native_batch_norm", optimizer_op(impl)});
  }
}

TEST(EpsAuditOfRuns, adamw_with_fp32_masters_is_silent) {
  for (const OptimizerImpl impl : kImpls) {
    const Analysis analysis = train([&] {
      auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = DType::kF16});
      auto optimizer = engine::make_optimizer(model->named_parameters(), adamw(impl, /*masters=*/true));
      return scenarios::ScenarioRun{
          std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer),
                                            engine::digits_train_batches(16, 1, DType::kF16),
                                            scenarios::classification_loss, engine::TrainerOptions{}),
          {}};
    });
    expect_silent(analysis, {optimizer_op(impl)});
  }
}

TEST(EpsAuditOfRuns, for_loop_adamw_in_pure_fp16_is_not) {
  const Analysis analysis = train([&] {
    auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = DType::kF16});
    auto optimizer = engine::make_optimizer(model->named_parameters(), adamw(OptimizerImpl::kForLoop, false));
    return scenarios::ScenarioRun{
        std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer),
                                          engine::digits_train_batches(16, 1, DType::kF16),
                                          scenarios::classification_loss, engine::TrainerOptions{}),
        {}};
  });
  const auto row = std::find_if(analysis.eps_audit.begin(), analysis.eps_audit.end(),
                                [](const EpsAuditRow& r) { return r.verdict == "zero"; });
  ASSERT_NE(row, analysis.eps_audit.end());
  EXPECT_EQ(row->dtype, DType::kF16);
  EXPECT_GT(row->zero_denominators, 0u);
}

}  // namespace
}  // namespace nanhunt
