// SPDX-License-Identifier: Apache-2.0
// A run on a device is watched as one on the CPU: the same ops, the same statistics, and not a bit of it changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "hooks/engine/tensor_reader.h"
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/op_adapter.h"
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
      [](const engine::Tensor& output, const engine::Batch& batch) {
        return engine::cross_entropy(output, batch.targets);
      },
      engine::TrainerOptions{.autocast = engine::AutocastOptions{},
                             .scaler = engine::GradScalerOptions{.init_scale = 0x1p20}});
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
  RecorderCounters counters;
  std::map<std::string, std::uint64_t> notes;
};

Watched watch(const Device& device, double lr = 1e-2, DeviceStats stats = WatchOptions{}.device_stats) {
  Watched out;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  EXPECT_TRUE(recorder);
  const auto trainer = make_trainer(device, lr);
  {
    TrainerWatch watching(*trainer, **recorder, {.device_stats = stats});
    out.left = train(*trainer);
  }
  EXPECT_TRUE((*recorder)->close());
  out.rows = script->all();
  std::map<StringId, std::string> strings{{0, ""}};
  for (const StringRecord& s : out.rows.strings) strings[s.id] = s.text;
  out.counters = (*recorder)->counters();
  for (const NoteRecord& note : out.rows.notes) out.notes[strings.at(note.text)] = note.count;
  for (const OpRecord& op : out.rows.ops) {
    out.ops.push_back(std::string(phase_name(op.phase)) + " " + strings.at(op.module) + " " + strings.at(op.op));
  }
  return out;
}

TEST(DeviceWatch, sees_the_ops_and_statistics_of_the_cpu) {
  const Watched cpu = watch({});
  engine::testing::ScopedEmulatedDevice emulated;
  const Watched device = watch(kEmulated, 1e-2, DeviceStats::kSync);
  EXPECT_EQ(device.ops, cpu.ops);
  EXPECT_GT(cpu.ops.size(), 100U);
  EXPECT_EQ(device.rows.changed.size(), 0U);
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

// Counts and extrema are the same; sums were added in another order, and are within the bounds of kernels/CONTRACTS.md.
void expect_same_statistics(const Watched& cpu, const Watched& device) {
  ASSERT_EQ(device.ops, cpu.ops);
  ASSERT_EQ(device.rows.values.size(), cpu.rows.values.size());
  for (std::size_t i = 0; i < cpu.rows.values.size(); ++i) {
    const ValueRecord &a = cpu.rows.values[i], &b = device.rows.values[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(b.producer, a.producer);
    EXPECT_EQ(b.base, a.base);
    ASSERT_EQ(b.has_stats, a.has_stats);
    TensorStats x = a.stats, y = b.stats;
    const double most = static_cast<double>(x.numel) * x.amax;
    EXPECT_NEAR(y.sum, x.sum, 1e-13 * most);
    EXPECT_NEAR(y.sum_sq, x.sum_sq, 1e-13 * most * x.amax);
    x.sum = y.sum = x.sum_sq = y.sum_sq = 0;
    EXPECT_EQ(y, x);
    EXPECT_EQ(b.flushed, a.flushed);
  }
}

std::uint64_t waits_of(bool watched, DeviceStats stats) {
  engine::testing::ScopedEmulatedDevice emulated;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const auto trainer = make_trainer(kEmulated, 1e-2);
  std::unique_ptr<TrainerWatch> watching;
  if (watched) {
    watching = std::make_unique<TrainerWatch>(*trainer, **recorder,
                                              WatchOptions{.device_stats = stats});
  }
  const std::uint64_t before = emulated.device.waits;
  for (int i = 0; i < kSteps; ++i) trainer->step();
  return emulated.device.waits - before;  // the end of the watch may wait
}

TEST(DeviceWatch, adds_no_wait_unless_it_is_asked_to) {
  EXPECT_EQ(WatchOptions{}.device_stats, DeviceStats::kDeferred);
  const std::uint64_t alone = waits_of(false, DeviceStats::kDeferred);
  EXPECT_EQ(waits_of(true, DeviceStats::kDeferred), alone);
  EXPECT_GT(waits_of(true, DeviceStats::kSync), alone);
}

// README.md counts them. Contents are read by the look alone, and by what follows only where something bad began.
TEST(DeviceWatch, an_op_takes_a_look_at_all_that_it_names_a_launch_for_each_output_and_one_for_births) {
  engine::testing::ScopedEmulatedDevice emulated;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const engine::Tensor x = engine::Tensor::full({300, 70}, 2.0, DType::kF32).on(kEmulated);
  const engine::Tensor y = engine::Tensor::full({300, 70}, 3.0, DType::kF32).on(kEmulated);
  std::uint64_t launches = 0, checks = 0;
  const auto added = [&](auto op) {
    launches = emulated.device.launches;
    checks = emulated.device.checks;
    const engine::Tensor kept = op();
    launches = emulated.device.launches - launches - 1;
    checks = emulated.device.checks - checks;
  };
  {
    const EngineWatch watching(**recorder, DeviceStats::kDeferred);
    for (const bool known : {false, true}) {
      added([&] { return engine::mul(x, y); });
      EXPECT_EQ(launches, 3U) << (known ? "inputs were read before" : "all is new");
      EXPECT_EQ(checks, 1U);
    }
    // Nor is it more where contents changed unseen.
    const float changed = 7;
    emulated.device.to_device(const_cast<void*>(device_view(x).data), &changed, sizeof changed);
    added([&] { return engine::mul(x, y); });
    EXPECT_EQ(launches, 3U);
    added([&] { return engine::relu(x); });
    EXPECT_EQ(launches, 3U);
  }
  ASSERT_TRUE((*recorder)->close());
  EXPECT_EQ((*recorder)->counters().deferred_lost, 0U);
  EXPECT_EQ(script->all().changed.size(), 1U);
}

TEST(DeviceWatch, gives_no_kernel_an_address_of_another_device) {
  engine::testing::ScopedEmulatedDevice emulated;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const Device other{kEmulated.kind, kEmulated.index + 1};
  const engine::Tensor big = engine::Tensor::full({2}, 1e6, DType::kF32);
  const engine::Tensor here = big.on(kEmulated), there = big.on(other);
  engine::Tensor halves = engine::Tensor::full({2}, 1.0, DType::kF16).on(kEmulated);
  {
    const EngineWatch watching(**recorder, DeviceStats::kDeferred);
    engine::copy_(halves, here);
    engine::copy_(halves, there);
  }
  ASSERT_TRUE((*recorder)->close());
  const RecordBatch rows = script->all();
  ASSERT_EQ(rows.evidence.size(), 2U) << "an infinity each";
  EXPECT_EQ(rows.evidence[0].operands.size(), 1U);
  EXPECT_EQ(rows.evidence[1].operands.size(), 0U) << "of another device: told without what met in it";
}

TEST(DeviceWatch, tells_what_is_under_way_when_it_ends) {
  engine::testing::ScopedEmulatedDevice emulated;
  emulated.device.delivery = {.after_waits = false, .copies_later = -1};  // comes to one who waits for it alone
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  const auto trainer = make_trainer(kEmulated, 1e-2);
  {
    TrainerWatch watching(*trainer, **recorder, {.device_stats = DeviceStats::kDeferred});
    trainer->step();
  }
  ASSERT_TRUE((*recorder)->close());
  EXPECT_GT((*recorder)->counters().deferred_readings, 10U);
  EXPECT_EQ((*recorder)->counters().deferred_lost, 0U);
}

TEST(DeviceWatch, late_statistics_are_those_of_the_cpu) {
  const Watched cpu = watch({});
  for (const testing_support::Order order :
       {testing_support::Order::kForwards, testing_support::Order::kBackwards, testing_support::Order::kShuffled}) {
    engine::testing::ScopedEmulatedDevice emulated;
    emulated.device.order = order;
    const Watched device = watch(kEmulated, 1e-2, DeviceStats::kDeferred);
    expect_same_statistics(cpu, device);
    EXPECT_EQ(device.left, train(*make_trainer(kEmulated, 1e-2)));
    EXPECT_GT(device.counters.deferred_readings, 100U);
    EXPECT_EQ(device.counters.deferred_lost, 0U);
  }
}

TEST(DeviceWatch, late_evidence_of_a_run_that_fails_is_that_of_the_cpu) {
  // A learning rate with which parameters overflow.
  const Watched cpu = watch({}, 1e38);
  ASSERT_FALSE(cpu.rows.evidence.empty());
  engine::testing::ScopedEmulatedDevice emulated;
  const Watched device = watch(kEmulated, 1e38, DeviceStats::kDeferred);
  expect_same_statistics(cpu, device);
  const std::vector<EvidenceRecord>& expected = cpu.rows.evidence;
  ASSERT_EQ(device.rows.evidence.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const EvidenceRecord &a = expected[i], &b = device.rows.evidence[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(b.seq, a.seq);
    EXPECT_EQ(b.value, a.value);
    EXPECT_EQ(b.flat_index, a.flat_index);
    EXPECT_TRUE(b.number == a.number || (std::isnan(b.number) && std::isnan(a.number)));
    ASSERT_EQ(b.operands.size(), a.operands.size());
    for (std::size_t k = 0; k < a.operands.size(); ++k) {
      const Operand &x = a.operands[k], &y = b.operands[k];
      EXPECT_EQ(y.value, x.value);
      EXPECT_EQ(y.flat_index, x.flat_index);
      EXPECT_TRUE(y.number == x.number || (std::isnan(y.number) && std::isnan(x.number)));
    }
  }
}

TEST(DeviceWatch, late_histograms_of_ops_where_bad_numbers_were_born_are_those_of_the_cpu) {
  const Watched cpu = watch({}, 1e38);
  ASSERT_GT(cpu.rows.histograms.size(), 2U);
  engine::testing::ScopedEmulatedDevice emulated;
  const Watched device = watch(kEmulated, 1e38, DeviceStats::kDeferred);
  EXPECT_EQ(device.rows.histograms, cpu.rows.histograms);
  EXPECT_EQ(device.notes.count("not taken on a device: histograms of ops where bad numbers began"), 0U);
}

TEST(DeviceWatch, statistics_that_are_lost_are_unknown_and_told) {
  engine::testing::ScopedEmulatedDevice emulated;
  emulated.device.delivery.never = true;
  const Watched device = watch(kEmulated, 1e-2, DeviceStats::kDeferred);
  EXPECT_GT(device.counters.deferred_lost, 100U);
  EXPECT_EQ(device.notes.at("not taken on a device: statistics that were lost or came too late"),
            device.counters.deferred_lost);
  // Numbers that the host holds itself are known.
  const auto known =
      std::ranges::count_if(device.rows.values, [](const ValueRecord& value) { return value.has_stats; });
  EXPECT_LT(known, std::ssize(device.rows.values) / 10);
}

TEST(DeviceWatch, a_device_whose_results_cannot_be_had_is_copied_from) {
  engine::testing::ScopedEmulatedDevice emulated;
  emulated.device.delivery.fails = true;
  const Watched cpu = watch({});
  const Watched device = watch(kEmulated, 1e-2, DeviceStats::kDeferred);
  expect_same_statistics(cpu, device);
  EXPECT_EQ(device.notes.count("statistics on the device, so contents were copied: the emulated device fails"), 1U);
}

// Random windows of a data set that lies on the device: each shows a part of its own, and nothing writes there.
TEST(DeviceWatch, forgets_old_windows_of_a_storage_so_that_memory_is_bounded) {
  engine::testing::ScopedEmulatedDevice emulated;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  ASSERT_TRUE(recorder);
  TensorReader reader(**recorder);
  const engine::Tensor data = engine::Tensor::zeros({2000}, DType::kF32).on(kEmulated);
  const auto read = [&](const engine::Tensor& window, TensorReader::Use use) {
    ValueView value = view_of(window, window.version(), /*has_contents=*/false);
    EXPECT_TRUE(reader.can_read(window));
    reader.begin();
    reader.value(window, value, use);
    reader.take();
    if (use == TensorReader::Use::kRead) {
      (*recorder)->on_mark({0, 0, TensorRole::kBatch, "window", value});
    } else if (value.late != 0) {
      (*recorder)->check_contents(0, value);
    }
    reader.launch();
    return value.late != 0;
  };
  std::vector<engine::Tensor> windows;
  for (int i = 0; i < 1000; ++i) {
    windows.push_back(engine::narrow(data, 0, i, 2));
    EXPECT_TRUE(read(windows.back(), TensorReader::Use::kRead));
  }
  const auto is_known = [&](const engine::Tensor& window) { return read(window, TensorReader::Use::kKnown); };
  const auto known = std::ranges::count_if(windows, is_known);
  EXPECT_GT(known, 100);
  EXPECT_LE(known, 256);
  EXPECT_FALSE(is_known(windows.front()));
  EXPECT_TRUE(is_known(windows.back()));
  EXPECT_TRUE(read(windows.front(), TensorReader::Use::kRead));  // anew, and reported as any other
  reader.finish();
  EXPECT_TRUE((*recorder)->close());
  EXPECT_EQ(script->all().marks.size(), 1001U);
  EXPECT_EQ((*recorder)->counters().deferred_lost, 0U);
}

TEST(DeviceWatch, changes_no_bit_of_the_run) {
  engine::testing::ScopedEmulatedDevice emulated;
  const std::vector<double> unwatched = train(*make_trainer(kEmulated, 1e-2));
  for (const DeviceStats stats : {DeviceStats::kDeferred, DeviceStats::kSync}) {
    EXPECT_EQ(watch(kEmulated, 1e-2, stats).left, unwatched) << device_stats_name(stats);
  }
}

}  // namespace
}  // namespace nanhunt::hooks
