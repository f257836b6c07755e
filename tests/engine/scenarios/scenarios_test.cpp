// SPDX-License-Identifier: Apache-2.0
// Every bundled scenario really has its fault where `expected` says, and every twin really trains, judged by
// plain loops over numbers: nothing of the recorder, the statistics kernels or the analyzer takes part.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>

#include "tests/engine/event_log.h"
#include "tests/support/scenario_names.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::scenarios {
namespace {

using engine::NamedTensor;
using engine::Tensor;

bool all_finite(const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  const std::vector<double> values = tensor.to_vector();
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

bool all_finite(const std::vector<NamedTensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const NamedTensor& entry) { return all_finite(entry.tensor); });
}

// The first op, in the order of execution, that made a non-finite number from finite ones. Contents that were
// overwritten are looked up among what was seen of them.
class FirstBadOp : public engine::Observer {
 public:
  struct Place {
    std::uint32_t step = 0;
    Phase phase = Phase::kForward;
    std::string module, op;
  };
  std::optional<Place> first;
  std::optional<std::string> bad_batch_at, bad_parameter;  // "step 7"; path before step 0
  std::set<std::string> modules;
  std::vector<ScalerAction> scaler_actions;  // of the first step
  std::vector<double> first_v, first_g;  // what the first addcmul_ stored, and its gradient

  void on_step_begin(std::uint32_t step) noexcept override { step_ = step; }
  void on_mark(TensorRole kind, std::string_view path, const Tensor& tensor) noexcept override {
    if (all_finite(tensor)) return;
    if (kind == TensorRole::kBatch && !bad_batch_at) bad_batch_at = "step " + std::to_string(step_);
    if (kind == TensorRole::kParameter && !first && !bad_parameter) bad_parameter = std::string(path);
  }
  void on_scaler(const ScalerEvent& event) noexcept override {
    if (step_ == 0) scaler_actions.push_back(event.action);
  }
  void on_op(const engine::OpCall& call) noexcept override {
    modules.insert(std::string(call.module));
    if (call.op == "addcmul_" && first_v.empty()) {
      first_v = call.outputs[0].tensor->to_vector();
      first_g = call.inputs[1].tensor->to_vector();
    }
    bool inputs_finite = true, outputs_finite = true;
    if (call.op == "masked_fill") {  // its -Inf is written on purpose
      on_purpose_.insert(contents_of(call.outputs[0]));
      return;
    }
    for (const engine::OpArgument& input : call.inputs) {
      if (on_purpose_.contains(contents_of(input))) continue;
      if (input.role == ArgRole::kRead || input.role == ArgRole::kSaved) {
        inputs_finite = inputs_finite && all_finite(*input.tensor);
      }
    }
    for (const engine::OpArgument& output : call.outputs) outputs_finite = outputs_finite && all_finite(*output.tensor);
    if (inputs_finite && !outputs_finite && !first) {
      first = Place{step_, call.phase, std::string(call.module), std::string(call.op)};
    }
  }

 private:
  using Contents = std::pair<std::uint64_t, std::uint32_t>;
  static Contents contents_of(const engine::OpArgument& argument) {
    return {argument.tensor->storage()->generation(), argument.version};
  }
  std::uint32_t step_ = 0;
  std::set<Contents> on_purpose_;
};

struct Trained {
  FirstBadOp watch;
  std::optional<std::uint32_t> first_bad_step;  // loss, parameters, state or gradients not finite
  std::vector<double> losses;
  std::vector<std::pair<std::string, std::string>> renamed;
};

Trained train(const Scenario& scenario, const ScenarioConfig& config, std::uint32_t steps) {
  Trained run;
  ScenarioRun made = scenario.make(config);
  run.renamed = made.renamed;
  engine::Trainer& trainer = *made.trainer;
  bool gradients_finite = true;
  trainer.set_boundary_callback([&](engine::Trainer& at) {
    for (const NamedTensor& entry : at.optimizer().parameters()) {
      if (entry.tensor.grad().defined()) gradients_finite = gradients_finite && all_finite(entry.tensor.grad());
    }
  });
  const engine::HookHandle handle = engine::add_observer(run.watch);
  for (std::uint32_t i = 0; i < steps; ++i) {
    const engine::StepResult result = trainer.step();
    run.losses.push_back(result.loss);
    const bool finite = std::isfinite(result.loss) && gradients_finite &&
                        all_finite(trainer.model().named_parameters()) && all_finite(trainer.optimizer().named_state());
    if (!finite && !run.first_bad_step) run.first_bad_step = result.step;
  }
  return run;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

bool is_fault(const Scenario& s) { return s.expected.status == VerdictStatus::kFault; }

class Fault : public ::testing::TestWithParam<std::string> {};
class Twin : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, Fault, ::testing::ValuesIn(testing_support::scenarios_where(is_fault)),
                         testing_support::scenario_case);
INSTANTIATE_TEST_SUITE_P(Scenarios, Twin, ::testing::ValuesIn(testing_support::scenarios_where(testing_support::is_clean)),
                         testing_support::scenario_case);

void expect_fault(const Scenario& scenario, const ScenarioConfig& config) {
  const Expectation& expected = scenario.expected;
  const Trained run = train(scenario, config, expected.step + 2);
  if (expected.sinks_stay_finite) {
    EXPECT_FALSE(run.first_bad_step);
  } else {
    EXPECT_EQ(run.first_bad_step, expected.step);
  }
  if (!expected.op && !expected.module) {  // nor a layer: a learning rate finder's ramp was past divergence
    const auto before = std::span(run.losses).first(expected.step);
    EXPECT_GT(before.back(), 4 * *std::min_element(before.begin(), before.end()));
    return;
  }
  if (!expected.op) {  // no op is to blame: the loss grew tenfold a step
    ASSERT_GE(expected.step, 3u);
    for (std::size_t step = expected.step - 2; step < expected.step; ++step) {
      EXPECT_GT(run.losses[step], 10 * run.losses[step - 1]) << "step " << step;
    }
    return;
  }
  std::string module = expected.module.value_or("");
  for (const auto& [from, to] : run.renamed) {
    if (from == module) {
      module = to;
      break;
    }
  }
  if (expected.op == "<batch>") {
    EXPECT_EQ(run.watch.bad_batch_at, "step " + std::to_string(expected.step));
    return;
  }
  if (expected.op == "<state>") {
    EXPECT_EQ(run.watch.bad_parameter, module);
    return;
  }
  if (expected.op == "clip_grad_norm_") {
    const auto& actions = run.watch.scaler_actions;
    const auto clip = std::find(actions.begin(), actions.end(), ScalerAction::kClip);
    EXPECT_NE(clip, actions.end());
    EXPECT_NE(std::find(clip, actions.end(), ScalerAction::kUnscale), actions.end());
    return;
  }
  // Nothing is bad: LostUpdates and TwoLossesOneScaler below look at weights and gradients.
  if (expected.cls == FindingClass::kUpdateLoss || expected.cls == FindingClass::kUnderflow) {
    EXPECT_FALSE(run.watch.first);
    return;
  }
  ASSERT_TRUE(run.watch.first);
  EXPECT_FALSE(run.watch.bad_batch_at);
  EXPECT_EQ(run.watch.first->step, expected.step);
  EXPECT_EQ(run.watch.first->phase, expected.phase);
  EXPECT_EQ(run.watch.first->module, module);
  EXPECT_EQ(run.watch.first->op, *expected.op);
}

TEST_P(Fault, is_born_at_the_expected_step_phase_module_and_op) {
  // for seeds other than the default too: the fault does not hang on luck
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    expect_fault(*find_scenario(GetParam()), {.seed = seed, .rename_seed = {}, .fix = ""});
  }
}

TEST_P(Fault, is_the_same_with_random_names) {
  const Scenario& scenario = *find_scenario(GetParam());
  expect_fault(scenario, {.seed = 1, .rename_seed = 99, .fix = ""});
  // and no old name is left
  const Trained run = train(scenario, {.seed = 1, .rename_seed = 99, .fix = ""}, 1);
  ASSERT_FALSE(run.renamed.empty());
  for (const auto& [from, to] : run.renamed) EXPECT_FALSE(run.watch.modules.contains(from)) << from;
  if (scenario.expected.module && scenario.expected.module != "<loss>") {
    EXPECT_TRUE(std::any_of(run.renamed.begin(), run.renamed.end(),
                            [&](const auto& pair) { return pair.first == *scenario.expected.module; }));
  }
}

TEST_P(Twin, stays_finite_and_learns) {
  const Scenario& twin = *find_scenario(GetParam());
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    const Trained run = train(twin, {.seed = seed, .rename_seed = {}, .fix = ""}, twin.steps);
    EXPECT_FALSE(run.first_bad_step) << "seed " << seed;
    EXPECT_FALSE(run.watch.first) << "seed " << seed << ": " << run.watch.first->op;
    const std::span losses(run.losses);
    EXPECT_LT(mean_of(losses.last(5)), 0.7 * mean_of(losses.first(5))) << "seed " << seed;
  }
}

TEST_P(Twin, is_the_scenario_with_its_first_fix_and_has_none_itself) {
  const Scenario& twin = *find_scenario(GetParam());
  const Scenario* scenario = find_scenario(twin.name.substr(0, twin.name.size() - std::string("-fixed").size()));
  ASSERT_NE(scenario, nullptr);
  EXPECT_TRUE(twin.fixes.empty());
  ASSERT_FALSE(scenario->fixes.empty());
  const Trained repaired = train(twin, {}, 5);
  const Trained fixed = train(*scenario, {.seed = 1, .rename_seed = {}, .fix = scenario->fixes[0].id}, 5);
  EXPECT_EQ(repaired.losses, fixed.losses);
}

TEST(Scenarios, every_fix_but_the_fused_optimizer_keeps_the_run_finite_50_steps_past_the_fault) {
  for (const Scenario& scenario : all_scenarios()) {
    for (const hunt::Fix& fix : scenario.fixes) {
      SCOPED_TRACE(scenario.name + " " + fix.id);
      const Trained run = train(scenario, {.seed = 1, .rename_seed = {}, .fix = fix.id}, scenario.expected.step + 51);
      // Fused Adam adds eps in fp32, but v is still stored in fp16: no cure, and the hunt must find that out.
      EXPECT_EQ(run.first_bad_step.has_value(), fix.id == "fused-optimizer");
    }
  }
}

TEST(AdamEpsRaised, trains_without_nan_while_v_is_0_where_the_gradient_is_not) {
  const Scenario& scenario = *find_scenario("adam-eps-raised");
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    const Trained run = train(scenario, {.seed = seed, .rename_seed = {}, .fix = ""}, scenario.steps + 20);
    EXPECT_FALSE(run.first_bad_step);
    // the first second moment stored is that of fc1.weight at step 0
    int lost = 0, with_gradient = 0;
    for (std::size_t i = 0; i < run.watch.first_v.size(); ++i) {
      with_gradient += run.watch.first_g[i] != 0;
      lost += run.watch.first_g[i] != 0 && run.watch.first_v[i] == 0;
    }
    EXPECT_GT(with_gradient, 2000);
    EXPECT_GT(lost, 0.9 * with_gradient) << "seed " << seed;
  }
}

TEST(SwallowedInf, leaves_a_dead_layer_and_no_nan) {
  const Scenario& scenario = *find_scenario("swallowed-inf");
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    ScenarioRun run = scenario.make({.seed = seed, .rename_seed = {}, .fix = ""});
    bool dead = false;
    run.trainer->set_boundary_callback([&](engine::Trainer& at) {
      const std::vector<double> g = at.optimizer().parameters()[0].tensor.grad().to_vector();
      dead = std::all_of(g.begin(), g.end(), [](double x) { return x == 0; });
    });
    for (std::uint32_t i = 0; i < scenario.steps; ++i) {
      EXPECT_TRUE(std::isfinite(run.trainer->step().loss));
      EXPECT_EQ(dead, i >= scenario.expected.step) << "seed " << seed << " step " << i;
    }
  }
}

TEST(ScalerCalibration, skips_its_first_steps_and_then_trains_with_finite_numbers) {
  const Scenario& scenario = *find_scenario("scaler-calibration");
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    ScenarioRun run = scenario.make({.seed = seed, .rename_seed = {}, .fix = ""});
    std::vector<bool> skipped;
    for (std::uint32_t i = 0; i < scenario.steps; ++i) {
      const engine::StepResult result = run.trainer->step();
      EXPECT_TRUE(std::isfinite(result.loss));
      skipped.push_back(result.skipped);
    }
    EXPECT_TRUE(skipped.front());
    EXPECT_FALSE(skipped.back());
    EXPECT_LT(std::count(skipped.begin(), skipped.end(), true), 12) << "seed " << seed;
    EXPECT_TRUE(all_finite(run.trainer->model().named_parameters()));
    EXPECT_TRUE(all_finite(run.trainer->model().named_buffers()));
  }
}

TEST(LostUpdates, leave_most_weights_as_they_were_and_its_twin_moves_them) {
  const auto unmoved_share = [](const std::string& name, std::uint64_t seed) {
    ScenarioRun run = find_scenario(name)->make({.seed = seed, .rename_seed = {}, .fix = ""});
    const auto weights = [&] {
      std::vector<double> all;
      for (const NamedTensor& entry : run.trainer->model().named_parameters()) {
        const std::vector<double> values = entry.tensor.to_vector();
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    const std::vector<double> before = weights();
    for (int i = 0; i < 100; ++i) run.trainer->step();
    const std::vector<double> after = weights();
    std::size_t unmoved = 0;
    for (std::size_t i = 0; i < before.size(); ++i) unmoved += before[i] == after[i] ? 1 : 0;
    return static_cast<double>(unmoved) / static_cast<double>(before.size());
  };
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    // 17 % of the weights belong to pixels that are always 0 and have no gradient.
    for (const std::string name : {"lost-updates", "o2-no-masters"}) {
      EXPECT_GT(unmoved_share(name, seed), 0.85) << name << " seed " << seed;
      EXPECT_LT(unmoved_share(name + "-fixed", seed), 0.5) << name << " seed " << seed;
    }
  }
}

TEST(GradUnderflow, stores_most_gradients_of_its_weights_as_zero_and_its_twin_does_not) {
  const auto zero_share = [](const char* name, std::uint64_t seed) {
    ScenarioRun run = find_scenario(name)->make({.seed = seed, .rename_seed = {}, .fix = ""});
    std::int64_t zeros = 0, all = 0;
    run.trainer->set_boundary_callback([&](engine::Trainer& at) {
      for (const NamedTensor& entry : at.optimizer().parameters()) {
        if (!entry.path.starts_with("decoder")) continue;  // the encoder also reads pixels that are always 0
        const std::vector<double> g = entry.tensor.grad().to_vector();
        zeros += std::count(g.begin(), g.end(), 0.0);
        all += static_cast<std::int64_t>(g.size());
      }
    });
    for (int i = 0; i < 10; ++i) run.trainer->step();
    return static_cast<double>(zeros) / static_cast<double>(all);
  };
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    EXPECT_GT(zero_share("grad-underflow", seed), 0.4) << "seed " << seed;
    EXPECT_LT(zero_share("grad-underflow-fixed", seed), 0.02) << "seed " << seed;
  }
}

TEST(TwoLossesOneScaler, store_the_gradients_of_the_smaller_loss_as_zero_and_its_twin_does_not) {
  const auto zero_share = [](const char* name, std::uint64_t seed) {
    ScenarioRun run = find_scenario(name)->make({.seed = seed, .rename_seed = {}, .fix = ""});
    std::int64_t zeros = 0, all = 0;
    run.trainer->set_boundary_callback([&](engine::Trainer& at) {
      for (const NamedTensor& entry : at.optimizer().parameters()) {
        if (!entry.path.starts_with("guess.decoder")) continue;
        const std::vector<double> g = entry.tensor.grad().to_vector();
        zeros += std::count(g.begin(), g.end(), 0.0);
        all += static_cast<std::int64_t>(g.size());
      }
    });
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(run.trainer->step().skipped);
    return static_cast<double>(zeros) / static_cast<double>(all);
  };
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    EXPECT_GT(zero_share("two-losses-one-scaler", seed), 0.9) << "seed " << seed;
    EXPECT_LT(zero_share("two-losses-one-scaler-fixed", seed), 0.02) << "seed " << seed;
  }
}

TEST(BadBatch, carries_its_nan_in_the_named_sample_alone) {
  const Scenario& scenario = *find_scenario("bad-batch");
  ASSERT_EQ(scenario.expected.samples.size(), 1u);
  class Batches : public engine::Observer {
   public:
    std::vector<std::int64_t> ids;
    std::set<std::int64_t> bad;
    void on_micro_batch(std::uint32_t, std::span<const std::int64_t> given) noexcept override {
      ids.assign(given.begin(), given.end());
    }
    void on_mark(TensorRole kind, std::string_view, const Tensor& tensor) noexcept override {
      if (kind != TensorRole::kBatch) return;
      for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        if (!std::isfinite(tensor.at(i))) bad.insert(ids[static_cast<std::size_t>(i / tensor.size(1))]);
      }
    }
  } batches;
  const engine::HookHandle handle = engine::add_observer(batches);
  auto run = scenario.make({});
  for (std::uint32_t i = 0; i < scenario.expected.step; ++i) run.trainer->step();
  EXPECT_TRUE(batches.bad.empty());
  run.trainer->step();
  EXPECT_EQ(batches.bad, std::set<std::int64_t>{scenario.expected.samples[0]});
}

TEST(Scenarios, repeat_themselves_bit_for_bit) {
  for (const Scenario& scenario : all_scenarios()) {
    auto first = scenario.make({}).trainer, second = scenario.make({}).trainer;
    for (int i = 0; i < 3; ++i) {
      first->step();
      second->step();
    }
    EXPECT_EQ(engine::testing::bytes_of(first->model().named_parameters()),
              engine::testing::bytes_of(second->model().named_parameters()))
        << scenario.name;
  }
}

TEST(Scenarios, are_found_by_name_and_refuse_unknown_fixes) {
  EXPECT_EQ(find_scenario("no-such"), nullptr);
  EXPECT_EQ(find_scenario(""), nullptr);
  for (const Scenario& scenario : all_scenarios()) {
    EXPECT_EQ(find_scenario(scenario.name), &scenario);
    EXPECT_FALSE(scenario.summary.empty());
    EXPECT_FALSE(scenario.dtypes.empty());
    EXPECT_GT(scenario.steps, scenario.expected.step);
    EXPECT_THROW(scenario.make({.seed = 1, .rename_seed = {}, .fix = "no-such"}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace nanhunt::scenarios
