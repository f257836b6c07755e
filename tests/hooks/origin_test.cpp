// SPDX-License-Identifier: Apache-2.0
// A run that failed is trained again, meets its origin op again, and computes it in other formats.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/trace/run/safetensors.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;

// Pure fp16 Adam: in step 0 the update divides 0 by 0. `spoil` changes a batch.
using Spoil = std::function<void(std::uint32_t, engine::Batch&)>;
TrainerFactory adam_in_fp16(const Spoil& spoil = {}) {
  return [spoil](const std::string& fix) {
    auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 16, 10}, .dtype = DType::kF16});
    engine::OptimizerOptions options{.algorithm = "adam", .lr = 1e-3, .eps = 1e-8};
    options.fp32_masters = fix == "fp32-masters";
    auto optimizer = engine::make_optimizer(mlp->named_parameters(), options);
    return std::make_unique<engine::Trainer>(
        std::move(mlp), std::move(optimizer),
        [source = engine::digits_train_batches(32, 1, DType::kF16), spoil](std::uint32_t step) {
          engine::Batch batch = source(step);
          if (spoil) spoil(step, batch);
          return batch;
        },
        [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
  };
}

struct Hunted {
  hunt::HuntOutcome outcome;
  Analysis after;
  std::string attempt;
};

// Trains `made` watched, then hunts with trainers of `again`.
Hunted hunted(const std::string& dir, const TrainerFactory& made, const TrainerFactory& again,
              const hunt::HuntOptions& options = {}) {
  RecorderOptions recorder_options;
  recorder_options.run_dir = dir;
  auto recorder = Recorder::open(recorder_options, RunInfo{});
  EXPECT_TRUE(recorder.is_ok());
  {
    const EngineWatch watch(**recorder);
    const auto trainer = made("");
    for (int i = 0; i < 3; ++i) trainer->step();
  }
  const auto replay = make_engine_replay(again, {{"fp32-masters", "fp32 master weights"}});
  auto outcome = hunt::hunt_run(*replay, **recorder, options);
  EXPECT_TRUE(outcome.is_ok());
  Hunted result{std::move(*outcome), {}, (*recorder)->attempt_dir()};
  EXPECT_TRUE((*recorder)->close().is_ok());
  result.after = std::move(*analyze_run(dir));
  return result;
}

TEST(Origin, of_a_lost_eps_is_met_again_captured_and_proved) {
  const testing_support::TempDir dir;
  const Hunted run = hunted(dir.path(), adam_in_fp16(), adam_in_fp16());
  const Finding& finding = run.after.findings.at(0);
  EXPECT_EQ(finding.place.op, "addcdiv_");
  EXPECT_EQ(confidence_name(finding.confidence), "proved");
  // the op alone is bad in every format, the op with add_ before it only in fp16
  ASSERT_EQ(run.outcome.probes.size(), 5u);
  const ProbeRecord& same = run.outcome.probes[0];
  EXPECT_TRUE(same.ran);
  EXPECT_EQ(same.nan + same.pos_inf + same.neg_inf, finding.bad_elements);
  EXPECT_EQ(run.outcome.probes[2].ops, 2u);
  EXPECT_EQ(run.outcome.probes[2].nan, 0);
  // what it read is in a file of its own
  const std::string file = run.attempt + "/captures/op-" + std::to_string(finding.place.seq) + ".safetensors";
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto captured = trace::read_safetensors(file, 1 << 24);
  ASSERT_TRUE(captured.is_ok()) << captured.status().message();
  std::set<std::string> names;
  for (const trace::NamedArray& array : captured->arrays) names.insert(array.name);
  EXPECT_EQ(names, (std::set<std::string>{"self", "tensor1", "tensor2"}));
  ASSERT_EQ(run.outcome.trials.experiments.size(), 1u);
  EXPECT_TRUE(run.outcome.trials.experiments[0].verified);
}

TEST(Origin, captures_are_not_written_when_they_are_not_wanted) {
  const testing_support::TempDir dir;
  const Hunted run =
      hunted(dir.path(), adam_in_fp16(), adam_in_fp16(), {.try_fixes = false, .captures = {.write = false}});
  struct stat info {};
  EXPECT_NE(::stat((run.attempt + "/captures").c_str(), &info), 0);
  EXPECT_EQ(confidence_name(run.after.findings.at(0).confidence), "proved");
}

TEST(Origin, nothing_is_captured_beyond_the_limit_and_nothing_concluded) {
  const testing_support::TempDir dir;
  const Hunted run =
      hunted(dir.path(), adam_in_fp16(), adam_in_fp16(), {.try_fixes = false, .captures = {.max_bytes = 100}});
  EXPECT_TRUE(run.outcome.probes.empty());
  EXPECT_EQ(confidence_name(run.after.findings.at(0).confidence), "observed");
}

TEST(Origin, a_run_that_meets_other_numbers_proves_nothing_of_the_first) {
  const testing_support::TempDir dir;
  const Spoil darker = [](std::uint32_t, engine::Batch& batch) {
    batch.inputs.copy_from(engine::mul(batch.inputs, 0.5));
  };
  const Hunted run = hunted(dir.path(), adam_in_fp16(), adam_in_fp16(darker), {.try_fixes = false, .captures = {}});
  ASSERT_EQ(run.outcome.probes.size(), 1u);
  EXPECT_FALSE(run.outcome.probes[0].ran);
  EXPECT_EQ(confidence_name(run.after.findings.at(0).confidence), "observed");
}

// Spoils the result of one op before anybody else sees it, as a flipped bit inside the op would.
class Flip final : public engine::Observer {
 public:
  void on_op(const engine::OpCall& call) noexcept override {
    if (call.op != "relu" || done_) return;
    done_ = true;
    Tensor out = *call.outputs[0].tensor;
    out.data<std::uint16_t>()[5] = 0x7c00;  // Inf
  }

 private:
  bool done_ = false;
};

TEST(Origin, a_result_that_was_bad_once_only_is_not_reproducible) {
  const testing_support::TempDir dir;
  const TrainerFactory healthy = [](const std::string&) { return adam_in_fp16()("fp32-masters"); };
  Flip flip;
  engine::HookHandle handle = engine::add_observer(flip);
  const Hunted run = hunted(dir.path(), healthy, healthy);
  handle.remove();
  const Finding& finding = run.after.findings.at(0);
  EXPECT_EQ(finding.place.op, "relu");
  EXPECT_EQ(finding_class_name(finding.cls), "not_reproducible");
  EXPECT_EQ(confidence_name(finding.confidence), "proved");
  EXPECT_TRUE(run.outcome.trials.experiments.empty());
  // the same with the fault in the arithmetic is reproducible: of_a_lost_eps_is_met_again_captured_and_proved
}

TEST(Origin, a_fix_is_not_tried_where_the_unchanged_run_does_not_fail_again) {
  const testing_support::TempDir dir;
  const TrainerFactory healthy = [](const std::string&) { return adam_in_fp16()("fp32-masters"); };
  const Hunted run = hunted(dir.path(), adam_in_fp16(), healthy);
  EXPECT_TRUE(run.outcome.trials.experiments.empty());
  EXPECT_NE(run.outcome.trials.not_tried.find("did not fail"), std::string::npos);
}

}  // namespace
}  // namespace nanhunt::hooks
