// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/flipped_run.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hooks/engine/tensor_reader.h"
#include "src/engine/backend.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::testing_support {
namespace {

constexpr std::uint32_t kSteps = 12;

// The highest bit of the exponent of an fp32 number: below 2 it multiplies by 2^128.
void flip(const engine::Tensor& tensor, std::int64_t element) {
  std::uint32_t bits = 0;
  auto* at = static_cast<std::byte*>(const_cast<void*>(hooks::device_view(tensor).data)) + 4 * element;
  const bool on_host = tensor.device().is_cpu();
  if (on_host) {
    std::memcpy(&bits, at, 4);
  } else {
    engine::backend_of(tensor.device()).to_host(&bits, at, 4);
  }
  bits ^= 1u << 30;
  if (on_host) {
    std::memcpy(at, &bits, 4);
  } else {
    engine::backend_of(tensor.device()).to_device(at, &bits, 4);
  }
}

// Flips a bit of what the first matrix product of a forward pass made, right after it was made.
class FlipOutput final : public engine::Observer {
 public:
  void on_step_begin(std::uint32_t step) noexcept override { step_ = step; }
  void on_op(const engine::OpCall& call) noexcept override {
    if (step_ != kFlipStep || done_ || call.phase != Phase::kForward || !call.op.ends_with("mm")) return;
    const engine::Tensor& out = *call.outputs.front().tensor;
    if (out.dtype() != DType::kF32) return;
    flip(out, 7);
    done_ = true;
    op = call.op;
    module = call.module;
  }
  std::string op, module;

 private:
  std::uint32_t step_ = 0;
  bool done_ = false;
};

}  // namespace

FlippedRun train_flipped(Where where, const FlipOptions& wanted) {
  FlippedRun out;
  const TempDir dir;
  RecorderOptions options;
  options.run_dir = dir.path();
  RunInfo info;
  info.level = "ops";
  auto recorder = Recorder::open(options, info);
  EXPECT_TRUE(recorder.is_ok()) << recorder.status().message();
  {
    scenarios::ScenarioConfig config;
    config.device = wanted.device;
    scenarios::ScenarioRun run = scenarios::find_scenario("log-zero-fixed")->make(config);
    hooks::TrainerWatch watch(*run.trainer, **recorder, {.device_stats = wanted.device_stats});
    FlipOutput flipper;
    engine::HookHandle handle;
    if (where == Where::kIntermediate) handle = engine::add_observer(flipper);  // hears of ops after the recorder
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      if (where == Where::kParameter && step == kFlipStep) {
        const engine::NamedTensor first = run.trainer->model().named_parameters().front();
        EXPECT_EQ(first.tensor.dtype(), DType::kF32);
        flip(first.tensor, 3);
        out.parameter = first.path;
      }
      run.trainer->step();
    }
    out.op = flipper.op;
    out.module = flipper.module;
  }
  EXPECT_TRUE((*recorder)->close().is_ok());
  out.counters = (*recorder)->counters();
  auto analysis = analyze_run(dir.path());
  EXPECT_TRUE(analysis.is_ok()) << analysis.status().message();
  if (analysis.is_ok()) out.analysis = std::move(*analysis);
  return out;
}

}  // namespace nanhunt::testing_support
