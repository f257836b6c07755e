// SPDX-License-Identifier: Apache-2.0
// The sentinel on a device that is late: it sees what it sees on the CPU, adds no wait, and changes no bit.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using engine::Tensor;
using engine::testing::kEmulated;
using engine::testing::ScopedEmulatedDevice;
using record::testing::ScriptedWriter;
using record::testing::WriterScript;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Scaled : std::uint8_t { kNo, kYes };

struct Plan {
  int steps = 6;
  Scaled scaled = Scaled::kNo;
  double scale = 0x1p10;
  double lr = 1e-3, eps = 1e-8;
  std::uint32_t micro_batches = 1;
  // Of the loss; a pure function of the step, as the first sample's number tells it.
  std::function<double(std::uint32_t step)> factor = [](std::uint32_t) { return 1.0; };
  // Of nothing that a version tells of.
  std::function<void(engine::Trainer&, std::uint32_t step)> strike = {};
  bool no_memory_at_boundaries = false;  // beyond what is in use
};

std::unique_ptr<engine::Trainer> make_trainer(const Device& device, const Plan& run) {
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 12, 10}});
  model->to(device);
  auto parameters = model->named_parameters();
  engine::TrainerOptions options;
  options.micro_batches = run.micro_batches;
  if (run.scaled == Scaled::kYes) {
    options.autocast = engine::AutocastOptions{};
    options.scaler = engine::GradScalerOptions{.init_scale = run.scale};
  }
  const auto impl = engine::OptimizerImpl::kForLoop;
  auto trainer = std::make_unique<engine::Trainer>(
      std::move(model),
      engine::make_optimizer(std::move(parameters), {.algorithm = "adam", .lr = run.lr, .eps = run.eps, .impl = impl}),
      [batches = engine::digits_train_batches(8, 3, DType::kF32), device, many = run.micro_batches,
       factor = run.factor](std::uint32_t call) {
        engine::Batch batch = batches(call);
        batch.sample_ids[0] = call / many;
        return engine::Batch{batch.inputs.on(device), batch.targets.on(device), batch.sample_ids};
      },
      [factor = run.factor](const Tensor& output, const engine::Batch& batch) {
        const Tensor loss = engine::cross_entropy(output, batch.targets);
        return engine::mul(loss, factor(static_cast<std::uint32_t>(batch.sample_ids[0])));
      },
      options);
  return trainer;
}

std::vector<double> contents(engine::Trainer& trainer) {
  std::vector<double> all;
  for (const auto& list : {trainer.model().named_parameters(), trainer.optimizer().named_state()}) {
    for (const engine::NamedTensor& entry : list) {
      for (const double value : entry.tensor.to_vector()) all.push_back(std::isnan(value) ? 12345.678 : value);
    }
  }
  return all;
}

struct Striker : engine::Observer {
  std::function<void(std::uint32_t)> begin;
  std::function<void()> boundary;
  bool wants_ops() const noexcept override { return false; }
  void on_optimizer_begin() noexcept override {
    if (boundary) boundary();
  }
  void on_step_begin(std::uint32_t step) noexcept override {
    if (begin) begin(step);
  }
};

struct Seen {
  std::vector<double> left, losses;
  RecordBatch rows;
  std::map<StringId, std::string> strings{{0, ""}};
  std::uint64_t waits = 0;  // of the steps, before the end
  BoundaryPlan boundary;
  kernels::ReadingsCounts counts;
  std::uint32_t triggers = 0;

  // "begin 5 loss", "reproduced 5 loss".
  std::vector<std::string> replays() const {
    std::vector<std::string> out;
    for (const ReplayRecord& r : rows.replays) {
      out.push_back(std::string(replay_result_name(r.result)) + " " + std::to_string(r.step) + " " +
                    std::string(replay_trigger_name(r.trigger)));
    }
    return out;
  }
  // "5: 3 bad in 2 from loss".
  std::vector<std::string> health() const {
    std::vector<std::string> out;
    for (const HealthRecord& h : rows.health) {
      out.push_back(std::to_string(h.step) + ": " + std::to_string(h.bad) + " bad in " + std::to_string(h.bad_tensors) +
                    " from " + strings.at(h.first_bad));
    }
    return out;
  }
  std::vector<std::string> notes() const {
    std::vector<std::string> out;
    for (const NoteRecord& n : rows.notes) out.push_back(strings.at(n.text));
    return out;
  }
  std::vector<std::uint32_t> steps() const {
    std::vector<std::uint32_t> out;
    for (const StepRecord& s : rows.steps) out.push_back(s.step);
    return out;
  }
  std::string last_replay_text() const { return rows.replays.empty() ? "" : strings.at(rows.replays.back().text); }
};

Seen watch(const Device& device, const Plan& run, const std::optional<WatchOptions>& options = WatchOptions{},
           testing_support::EmulatedDevice* emulated = nullptr) {
  Seen seen;
  const auto script = std::make_shared<WriterScript>();
  auto recorder = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
  EXPECT_TRUE(recorder);
  const auto trainer = make_trainer(device, run);
  Striker striker;
  striker.begin = [&](std::uint32_t step) {
    if (run.strike && !engine::replaying()) run.strike(*trainer, step);
  };
  Striker relief;
  if (run.no_memory_at_boundaries) {
    striker.boundary = [&] { emulated->limit = emulated->memory().used; };
    relief.boundary = [&] { emulated->limit = 0; };
  }
  {
    const engine::HookHandle handle = engine::add_observer(striker);
    std::optional<TrainerWatch> watching;
    if (options) watching.emplace(*trainer, **recorder, *options);
    const engine::HookHandle after = engine::add_observer(relief);
    const std::uint64_t before = emulated != nullptr ? emulated->waits : 0;
    for (int i = 0; i < run.steps; ++i) seen.losses.push_back(trainer->step().loss);
    if (emulated != nullptr) seen.waits = emulated->waits - before;
    if (watching) {
      watching->finish();
      seen.triggers = watching->triggers();
      seen.boundary = watching->boundary();
      seen.counts = watching->readings();
    }
  }
  seen.left = contents(*trainer);
  EXPECT_TRUE((*recorder)->close());
  seen.rows = script->all();
  for (const StringRecord& s : seen.rows.strings) seen.strings[s.id] = s.text;
  return seen;
}

Seen watch_emulated(const Plan& run, const std::optional<WatchOptions>& options = WatchOptions{},
                    testing_support::ReadingsDelivery delivery = {}) {
  ScopedEmulatedDevice emulated;
  emulated.device.delivery = delivery;
  return watch(kEmulated, run, options, &emulated.device);
}

// But for the last bits of norms, whose sums have another order on a device.
void expect_same_rows(const Seen& device, const Seen& cpu) {
  EXPECT_EQ(device.health(), cpu.health());
  EXPECT_EQ(device.replays(), cpu.replays());
  EXPECT_EQ(device.steps(), cpu.steps());
  ASSERT_EQ(device.rows.health.size(), cpu.rows.health.size());
  for (std::size_t i = 0; i < cpu.rows.health.size(); ++i) {
    const auto same = [](double a, double b) {
      return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= 1e-9 * std::abs(b);
    };
    EXPECT_TRUE(same(device.rows.health[i].gradient_norm, cpu.rows.health[i].gradient_norm)) << i;
    EXPECT_TRUE(same(device.rows.health[i].weight_norm, cpu.rows.health[i].weight_norm)) << i;
  }
  EXPECT_EQ(device.rows.norms.size(), cpu.rows.norms.size());
  EXPECT_EQ(device.rows.ops.size(), cpu.rows.ops.size());
  EXPECT_EQ(device.rows.sample_ids.size(), cpu.rows.sample_ids.size());
  EXPECT_EQ(device.rows.scaler.size(), cpu.rows.scaler.size());
}

WatchOptions at(OptimizerBoundary boundary) {
  WatchOptions options;
  options.boundary = boundary;
  return options;
}

TEST(SentinelOnDevice, adds_no_wait_at_a_deferred_boundary) {
  const Plan run;
  const Seen unwatched = watch_emulated(run, std::nullopt);
  const Seen watched = watch_emulated(run);
  EXPECT_EQ(watched.boundary.way, BoundaryPlan::Way::kDeferred);
  EXPECT_TRUE(watched.boundary.copies);
  EXPECT_EQ(watched.waits, unwatched.waits);
  EXPECT_EQ(watched.left, unwatched.left);
  EXPECT_EQ(watched.losses, unwatched.losses);
  EXPECT_EQ(watched.rows.health.size(), 6U);
  EXPECT_EQ(watched.counts.waits, 0U);
  EXPECT_EQ(watched.counts.lost, 0U);
  EXPECT_EQ(watched.counts.launches, 1U + 3U * 6U) << "at the start; batch and loss, gradients, parameters and state";
  EXPECT_EQ(watched.counts.copies, 6U);
}

TEST(SentinelOnDevice, adds_no_wait_beside_the_loss_scalers_own) {
  const Plan run{.scaled = Scaled::kYes, .micro_batches = 2};
  const Seen unwatched = watch_emulated(run, std::nullopt);
  const Seen watched = watch_emulated(run);
  EXPECT_EQ(watched.boundary.way, BoundaryPlan::Way::kScaler);
  EXPECT_GT(watched.rows.health.size(), 0U);
  EXPECT_EQ(watched.waits, unwatched.waits);
  EXPECT_EQ(watched.left, unwatched.left);
}

TEST(SentinelOnDevice, waits_once_a_step_at_boundary_sync) {
  const Plan run;
  const Seen unwatched = watch_emulated(run, std::nullopt);
  const Seen watched = watch_emulated(run, at(OptimizerBoundary::kSync));
  EXPECT_EQ(watched.boundary.way, BoundaryPlan::Way::kSync);
  EXPECT_EQ(watched.waits, unwatched.waits + static_cast<std::uint64_t>(run.steps));
  EXPECT_EQ(watched.notes().back(), "waits for the device that the watch has added");
  EXPECT_EQ(watched.rows.notes.back().count, static_cast<std::uint64_t>(run.steps));
  EXPECT_EQ(watched.left, unwatched.left);
}

TEST(SentinelOnDevice, tells_of_a_healthy_run_what_the_cpu_tells) {
  for (const Scaled scaled : {Scaled::kNo, Scaled::kYes}) {
    const Plan run{.scaled = scaled, .micro_batches = 2};
    const Seen cpu = watch({}, run);
    EXPECT_EQ(cpu.rows.health.size(), 6U);
    for (const OptimizerBoundary boundary : {OptimizerBoundary::kAuto, OptimizerBoundary::kDeferred, OptimizerBoundary::kSync}) {
      SCOPED_TRACE(boundary_name(boundary));
      const Seen device = watch_emulated(run, at(boundary));
      expect_same_rows(device, cpu);
      EXPECT_THAT(device.notes(), Contains(device.boundary.text));
    }
    EXPECT_THAT(cpu.notes(), IsEmpty());
  }
}

// The faults, and what each leaves bad first.
std::map<std::string, Plan> faults() {
  std::map<std::string, Plan> all;
  const auto at_step = [](std::uint32_t bad_step, double value) {
    return [=](std::uint32_t step) { return step == bad_step ? value : 1.0; };
  };
  all["the loss is NaN in one step"] = {.factor = at_step(3, kNaN)};
  all["the loss is infinite in the last step"] = {.factor = at_step(5, kInfinity)};
  all["gradients alone overflow"] = {.scaled = Scaled::kYes, .scale = 0x1p20};
  all["the loss is NaN under a scaler"] = {.scaled = Scaled::kYes, .micro_batches = 2, .factor = at_step(2, kNaN)};
  all["parameters overflow"] = {.lr = 1e38};
  all["Adam divides by zero"] = {.eps = 0};
  all["parameters overflow in the last step"] = {.steps = 1, .lr = 1e39};
  return all;
}

TEST(SentinelOnDevice, trips_where_the_cpu_trips_and_replays_the_same_step) {
  for (const auto& [name, run] : faults()) {
    const Seen cpu = watch({}, run);
    EXPECT_GT(cpu.triggers, 0U) << name;
    for (const OptimizerBoundary boundary : {OptimizerBoundary::kAuto, OptimizerBoundary::kDeferred, OptimizerBoundary::kSync}) {
      SCOPED_TRACE(name + ", boundary " + std::string(boundary_name(boundary)));
      const Seen device = watch_emulated(run, at(boundary));
      EXPECT_EQ(device.triggers, cpu.triggers);
      std::vector<std::string> results, expected;
      for (const ReplayRecord& r : device.rows.replays)
        results.emplace_back(std::to_string(r.step) + std::string(replay_result_name(r.result)));
      for (const ReplayRecord& r : cpu.rows.replays)
        expected.emplace_back(std::to_string(r.step) + std::string(replay_result_name(r.result)));
      EXPECT_EQ(results, expected) << device.last_replay_text();
      EXPECT_EQ(device.rows.ops.size(), cpu.rows.ops.size());
    }
  }
}

// Pixels that are 0 in every image have gradients of 0, and without eps Adam divides them by 0.
TEST(SentinelOnDevice, tells_of_a_division_by_zero_in_hindsight_what_the_cpu_foresees) {
  for (const Scaled scaled : {Scaled::kNo, Scaled::kYes}) {
    const Plan run{.steps = 2, .scaled = scaled, .eps = 0};
    const Seen cpu = watch({}, run);
    EXPECT_EQ(cpu.replays()[0], "begin 0 audit");
    EXPECT_NE(cpu.rows.health[0].bad & kHealthAudit, 0U);
    for (const OptimizerBoundary boundary : {OptimizerBoundary::kAuto, OptimizerBoundary::kDeferred}) {
      SCOPED_TRACE(boundary_name(boundary));
      const Seen device = watch_emulated(run, at(boundary));
      EXPECT_EQ(device.health(), cpu.health());
      EXPECT_EQ(device.replays()[0], "begin 0 parameter");  // the optimizer had run
      EXPECT_EQ(device.triggers, cpu.triggers);
      EXPECT_THAT(device.notes(), Contains(HasSubstr("bad updates are not foreseen before the optimizer runs")));
    }
  }
}

TEST(SentinelOnDevice, foresees_a_division_by_zero_at_boundary_sync) {
  const Plan run{.steps = 2, .eps = 0};
  const Seen cpu = watch({}, run);
  const Seen device = watch_emulated(run, at(OptimizerBoundary::kSync));
  expect_same_rows(device, cpu);
  EXPECT_EQ(device.replays()[0], "begin 0 audit");
  EXPECT_THAT(device.notes(), Not(Contains(HasSubstr("not foreseen"))));
}

TEST(SentinelOnDevice, says_at_boundary_sync_what_was_too_large_to_be_foreseen) {
  WatchOptions options = at(OptimizerBoundary::kSync);
  options.close_bytes = 0;
  const Plan run{.steps = 2, .eps = 0};
  const Seen device = watch_emulated(run, options);
  EXPECT_EQ(device.rows.health[0].bad & kHealthAudit, 0U);
  EXPECT_NE(device.rows.health[0].bad & (1U << static_cast<unsigned>(TensorRole::kParameter)), 0U);
  EXPECT_THAT(device.notes(), Contains(HasSubstr("too large to be read before the optimizer runs: not foreseen")));
  // where options prove it there is nothing to say
  EXPECT_THAT(watch_emulated({.steps = 2}, options).notes(), Not(Contains(HasSubstr("not foreseen"))));
}

TEST(SentinelOnDevice, changes_no_bit_through_a_trigger_at_any_boundary) {
  for (const auto& [name, run] : faults()) {
    const Seen unwatched = watch_emulated(run, std::nullopt);
    for (const OptimizerBoundary boundary : {OptimizerBoundary::kAuto, OptimizerBoundary::kDeferred, OptimizerBoundary::kSync}) {
      SCOPED_TRACE(name + ", boundary " + std::string(boundary_name(boundary)));
      const Seen watched = watch_emulated(run, at(boundary));
      EXPECT_GT(watched.triggers, 0U);
      EXPECT_EQ(watched.left, unwatched.left);
    }
  }
}

TEST(SentinelOnDevice, compares_a_replay_by_statistics_and_says_so) {
  const Seen device = watch_emulated({.factor = [](std::uint32_t step) { return step == 3 ? kNaN : 1.0; }});
  ASSERT_GE(device.rows.replays.size(), 2U);
  EXPECT_EQ(device.replays()[1], "reproduced 3 loss");
  EXPECT_THAT(device.strings.at(device.rows.replays[1].text),
              HasSubstr("The replay gave the same statistics as the step"));
}

TEST(SentinelOnDevice, without_a_copy_refuses_to_replay_a_step_whose_optimizer_ran_and_says_why) {
  WatchOptions options = at(OptimizerBoundary::kSync);
  options.close_bytes = 0;
  const Seen device = watch_emulated({.lr = 1e38}, options);
  EXPECT_FALSE(device.boundary.copies);
  ASSERT_FALSE(device.rows.replays.empty());
  EXPECT_THAT(device.replays()[0], HasSubstr("refused"));
  EXPECT_THAT(device.strings.at(device.rows.replays[0].text), HasSubstr("no copy of them was kept"));
  EXPECT_FALSE(device.rows.marks.empty());
}

TEST(SentinelOnDevice, writes_rows_that_come_late_under_their_own_step_and_in_order) {
  const Plan run{.steps = 9, .scaled = Scaled::kYes, .micro_batches = 2};
  const Seen cpu = watch({}, run);
  const Seen device = watch_emulated(run, at(OptimizerBoundary::kDeferred), {.after_waits = false, .copies_later = 2});
  expect_same_rows(device, cpu);
  EXPECT_EQ(device.left, watch_emulated(run, std::nullopt).left);
}

TEST(SentinelOnDevice, refuses_to_replay_a_step_of_which_it_hears_when_the_next_is_under_way) {
  const Seen device = watch_emulated({.steps = 9, .factor = [](std::uint32_t step) { return step == 3 ? kNaN : 1.0; }},
                                     at(OptimizerBoundary::kDeferred), {.after_waits = false, .copies_later = 2});
  ASSERT_FALSE(device.rows.replays.empty());
  EXPECT_EQ(device.replays()[0], "refused 3 loss");
  EXPECT_THAT(device.strings.at(device.rows.replays[0].text), HasSubstr("was under way"));
  EXPECT_EQ(device.rows.health.size(), 9U);
  EXPECT_NE(device.rows.health[3].bad, 0U);
}

TEST(SentinelOnDevice, goes_on_when_nothing_ever_comes_and_calls_no_step_healthy) {
  const Plan run{.steps = 40};
  const Seen device = watch_emulated(run, WatchOptions{}, {.never = true});
  EXPECT_THAT(device.rows.health, IsEmpty());
  EXPECT_EQ(device.rows.steps.size(), 40U);
  ASSERT_THAT(device.notes(), Contains(HasSubstr("not known to be healthy")));
  EXPECT_EQ(device.rows.notes.back().count, 40U);
  EXPECT_EQ(device.left, watch_emulated(run, std::nullopt).left);
}

TEST(SentinelOnDevice, goes_on_at_boundary_sync_when_there_is_no_memory_for_the_copy_and_says_so) {
  const Plan run{.no_memory_at_boundaries = true};
  const Seen unwatched = watch_emulated(run, std::nullopt);
  const Seen watched = watch_emulated(run);
  EXPECT_EQ(watched.boundary.way, BoundaryPlan::Way::kSync);
  // One a step; and once what the first step's update, which nobody foresaw, left of four parameters: parameter,
  // gradient and two of state.
  EXPECT_EQ(watched.waits, unwatched.waits + 5 + 4 * 4);
  EXPECT_THAT(watched.notes(), Contains(HasSubstr("no memory for the copy")));
  EXPECT_EQ(watched.rows.health.size(), 6U);
  EXPECT_EQ(watched.left, unwatched.left);
}

TEST(SentinelOnDevice, is_replaced_by_copies_to_the_host_where_the_device_gives_no_readings_and_says_so) {
  const Seen device = watch_emulated({}, WatchOptions{}, {.fails = true});
  EXPECT_EQ(device.rows.health.size(), 6U);
  EXPECT_THAT(device.notes(), Contains(HasSubstr("this device gives no readings: the emulated device fails")));
}

TEST(SentinelOnDevice, finds_a_stray_write_in_the_step_that_it_makes_bad) {
  const auto strike = [](engine::Trainer& trainer, std::uint32_t step) {
    if (step != 4) return;
    // Past the version: as a kernel does that writes where it should not.
    const engine::Storage& storage = *trainer.model().named_parameters()[0].tensor.storage();
    std::vector<std::byte> bytes(storage.bytes());
    storage.read(bytes.data());
    const float bad = std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() + 28, &bad, sizeof bad);
    const_cast<engine::Storage&>(storage).write(bytes.data());
  };
  const Plan run{.strike = strike};
  const Seen cpu = watch({}, run);
  ASSERT_EQ(cpu.rows.changed.size(), 1U);
  for (const OptimizerBoundary boundary : {OptimizerBoundary::kSync, OptimizerBoundary::kDeferred}) {
    SCOPED_TRACE(boundary_name(boundary));
    const Seen device = watch_emulated(run, at(boundary));
    ASSERT_EQ(device.rows.changed.size(), 1U);
    EXPECT_EQ(device.rows.changed[0].step, 4U);
    EXPECT_EQ(device.rows.changed[0].since_step, 3U);
    EXPECT_EQ(device.health()[4], cpu.health()[4]);
    EXPECT_EQ(device.replays()[0], cpu.replays()[0]);
  }
}

}  // namespace
}  // namespace nanhunt::hooks
