// SPDX-License-Identifier: Apache-2.0
// A bit flips in a training run, in memory and told to nobody: what is said of it at levels ops and sentinel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/analyzer.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kFlipStep = 5, kSteps = 12;

// The highest bit of the exponent of an fp32 number: below 2 it multiplies by 2^128.
void flip(const void* first, std::int64_t element) {
  std::uint32_t bits = 0;
  auto* at = static_cast<std::byte*>(const_cast<void*>(first)) + 4 * element;
  std::memcpy(&bits, at, 4);
  bits ^= 1u << 30;
  std::memcpy(at, &bits, 4);
}

// Flips a bit of what the first matrix product of a forward pass made, right after it was made; not in replays.
class FlipOutput final : public engine::Observer {
 public:
  void on_step_begin(std::uint32_t step) noexcept override { step_ = step; }
  void on_op(const engine::OpCall& call) noexcept override {
    if (step_ != kFlipStep || done_ || call.phase != Phase::kForward || !call.op.ends_with("mm")) return;
    const engine::Tensor& out = *call.outputs.front().tensor;
    if (out.dtype() != DType::kF32) return;
    flip(out.raw(), 7);
    done_ = true;
    op = call.op;
    module = call.module;
  }
  std::string op, module;

 private:
  std::uint32_t step_ = 0;
  bool done_ = false;
};

struct Trained {
  Analysis analysis;
  std::string parameter;   // whose bit was flipped
  std::string op, module;  // that made what was flipped
};
enum class Where { kNowhere, kParameter, kIntermediate };

Trained train(Where where, const std::string& level) {
  Trained out;
  const testing_support::TempDir dir;
  RecorderOptions options;
  options.run_dir = dir.path();
  RunInfo info;
  info.level = level;
  auto recorder = Recorder::open(options, info);
  EXPECT_TRUE(recorder.is_ok()) << recorder.status().message();
  {
    scenarios::ScenarioRun run = scenarios::find_scenario("log-zero-fixed")->make({});
    hooks::TrainerWatch watch(*run.trainer, **recorder, {.level = *hooks::parse_watch_level(level)});
    FlipOutput flipper;
    engine::HookHandle handle;
    if (where == Where::kIntermediate) handle = engine::add_observer(flipper);  // hears of ops after the recorder
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      if (where == Where::kParameter && step == kFlipStep) {
        const engine::NamedTensor first = run.trainer->model().named_parameters().front();
        EXPECT_EQ(first.tensor.dtype(), DType::kF32);
        flip(first.tensor.raw(), 3);
        out.parameter = first.path;
      }
      run.trainer->step();
    }
    out.op = flipper.op;
    out.module = flipper.module;
  }
  EXPECT_TRUE((*recorder)->close().is_ok());
  auto analysis = analyze_run(dir.path());
  EXPECT_TRUE(analysis.is_ok()) << analysis.status().message();
  if (analysis.is_ok()) out.analysis = std::move(*analysis);
  return out;
}

void expect_headline(const Trained& run, FindingClass cls, const std::optional<std::string>& op,
                     const std::optional<std::string>& module) {
  ASSERT_FALSE(run.analysis.findings.empty()) << run.analysis.verdict.headline;
  const Finding& f = run.analysis.findings.front();
  EXPECT_EQ(severity_name(f.severity), "fault") << f.title;
  EXPECT_EQ(finding_class_name(f.cls), finding_class_name(cls)) << f.title;
  EXPECT_EQ(f.place.step, kFlipStep);
  EXPECT_EQ(f.place.op, op);
  EXPECT_EQ(f.place.module, module);
}

class Flip : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Levels, Flip, testing::Values("sentinel", "sampled", "ops"),
                         [](const auto& at) { return at.param; });

TEST_P(Flip, of_a_bit_of_a_parameter_is_corruption_of_that_parameter) {
  const Trained run = train(Where::kParameter, GetParam());
  expect_headline(run, FindingClass::kCorruption, "<state>", run.parameter);
}

TEST_P(Flip, that_never_happens_is_silent) {
  const Trained run = train(Where::kNowhere, GetParam());
  EXPECT_EQ(verdict_status_name(run.analysis.verdict.status), "clean");
  EXPECT_TRUE(run.analysis.findings.empty());
}

TEST(FlipInPassing, is_corruption_of_the_output_at_level_ops) {
  const Trained run = train(Where::kIntermediate, "ops");
  ASSERT_FALSE(run.op.empty());
  expect_headline(run, FindingClass::kCorruption, run.op, run.module);
  EXPECT_EQ(run.analysis.findings.front().place.phase, Phase::kForward);
}

TEST(FlipInPassing, is_not_reproducible_at_level_sentinel) {
  const Trained run = train(Where::kIntermediate, "sentinel");
  ASSERT_FALSE(run.op.empty());
  expect_headline(run, FindingClass::kNotReproducible, std::nullopt, std::nullopt);
}

}  // namespace
}  // namespace nanhunt
