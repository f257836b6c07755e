// SPDX-License-Identifier: Apache-2.0
// A run on a device is watched as one on the CPU: the same ops, the same statistics, and not a bit of it changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "src/record/recorder.h"
#include "tests/engine/device/device_support.h"
#include "tests/record/support.h"

namespace nanhunt::hooks {
namespace {

using engine::Device;
using engine::testing::kEmulated;
using record::testing::ScriptedWriter;
using record::testing::WriterScript;

constexpr int kSteps = 4;

std::unique_ptr<engine::Trainer> make_trainer(const Device& device, double lr) {
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 12, 10}});
  model->to(device);
  auto parameters = model->named_parameters();
  return std::make_unique<engine::Trainer>(
      std::move(model), engine::make_optimizer(std::move(parameters), {.algorithm = "adam", .lr = lr}),
      [batches = engine::digits_train_batches(8, 3, DType::kF32), device](std::uint32_t step) {
        engine::Batch batch = batches(step);
        return engine::Batch{batch.inputs.on(device), batch.targets.on(device), batch.sample_ids};
      },
      [](const engine::Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); },
      engine::TrainerOptions{.autocast = engine::AutocastOptions{}, .scaler = engine::GradScalerOptions{.init_scale = 0x1p20}});
}

std::vector<double> train(engine::Trainer& trainer) {
  std::vector<double> left;
  for (int i = 0; i < kSteps; ++i) left.push_back(trainer.step().loss);
  for (const auto& list : {trainer.model().named_parameters(), trainer.optimizer().named_state()}) {
    for (const engine::NamedTensor& entry : list) {
      const std::vector<double> values = entry.tensor.to_vector();
      left.insert(left.end(), values.begin(), values.end());
    }
  }
  return left;
}

struct Watched {
  std::vector<double> left;
  RecordBatch rows;
  std::vector<std::string> ops;
  std::uint32_t replays = 0;
};

Watched watch(const Device& device, WatchLevel level, double lr = 1e-2) {
  Watched out;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  EXPECT_TRUE(recorder);
  const auto trainer = make_trainer(device, lr);
  {
    TrainerWatch watching(*trainer, **recorder, {.level = level});
    out.left = train(*trainer);
    out.replays = watching.trips();
  }
  EXPECT_TRUE((*recorder)->close());
  out.rows = script->all();
  std::map<StringId, std::string> strings{{0, ""}};
  for (const StringRecord& s : out.rows.strings) strings[s.id] = s.text;
  for (const OpRecord& op : out.rows.ops) {
    out.ops.push_back(std::string(phase_name(op.phase)) + " " + strings.at(op.module) + " " + strings.at(op.op));
  }
  return out;
}

TEST(DeviceWatch, sees_the_ops_and_statistics_of_the_cpu) {
  const Watched cpu = watch({}, WatchLevel::kOps);
  engine::testing::ScopedEmulatedDevice emulated;
  const Watched device = watch(kEmulated, WatchLevel::kOps);
  EXPECT_EQ(device.ops, cpu.ops);
  EXPECT_GT(cpu.ops.size(), 100U);
  ASSERT_EQ(device.rows.values.size(), cpu.rows.values.size());
  for (std::size_t i = 0; i < cpu.rows.values.size(); ++i) {
    const ValueRecord &a = cpu.rows.values[i], &b = device.rows.values[i];
    EXPECT_EQ(a.has_stats, b.has_stats) << i;
    EXPECT_EQ(a.stats.numel, b.stats.numel);
    EXPECT_EQ(a.stats.amax, b.stats.amax);
    EXPECT_EQ(a.stats.sum, b.stats.sum);
    EXPECT_EQ(a.stats.nonfinite(), b.stats.nonfinite());
  }
}

TEST(DeviceWatch, changes_no_bit_of_the_run_at_any_level) {
  engine::testing::ScopedEmulatedDevice emulated;
  const std::vector<double> unwatched = train(*make_trainer(kEmulated, 1e-2));
  for (const WatchLevel level : {WatchLevel::kSentinel, WatchLevel::kSampled, WatchLevel::kOps}) {
    EXPECT_EQ(watch(kEmulated, level).left, unwatched) << watch_level_name(level);
  }
}

TEST(DeviceWatch, replays_a_bad_step_as_on_the_cpu) {
  // A learning rate with which parameters overflow.
  const Watched cpu = watch({}, WatchLevel::kSentinel, 1e38);
  ASSERT_GT(cpu.replays, 0U);
  engine::testing::ScopedEmulatedDevice emulated;
  const Watched device = watch(kEmulated, WatchLevel::kSentinel, 1e38);
  EXPECT_EQ(device.replays, cpu.replays);
  EXPECT_EQ(device.ops, cpu.ops);
}

}  // namespace
}  // namespace nanhunt::hooks
