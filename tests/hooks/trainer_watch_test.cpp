// SPDX-License-Identifier: Apache-2.0
// Level sentinel: what is found, what is replayed, and that the run does not notice.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/bytes_of.h"
#include "tests/support/silent_recorder.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;
using record::testing::ScriptedWriter;
using record::testing::WriterScript;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::bytes_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Multiplies the loss by what `factor` says; with a scaler that calibrates, micro-batches and clipping.
std::unique_ptr<engine::Trainer> make_trainer(std::function<double(std::uint32_t call)> factor, bool scaled = false) {
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 16, 10}});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 1e-3});
  engine::TrainerOptions options;
  if (scaled) {
    options.autocast = engine::AutocastOptions{};
    options.scaler = engine::GradScalerOptions{.init_scale = 0x1p24, .growth_interval = 20};
    options.clip_norm = 1.0;
    options.micro_batches = 2;
  }
  return std::make_unique<engine::Trainer>(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(16, 1, DType::kF32),
      [factor, call = 0u](const Tensor& output, const engine::Batch& batch) mutable {
        return engine::mul(engine::cross_entropy(output, batch.targets), factor(call++));
      },
      options);
}

// A persistent fault of one step: the batch has the same first sample whenever that step is run.
std::unique_ptr<engine::Trainer> make_trainer_with_bad_step(std::uint32_t bad_step, std::uint32_t last_bad_step) {
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 16, 10}});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 0});
  auto whole = engine::digits_train_batches(16, 1, DType::kF32);
  return std::make_unique<engine::Trainer>(
      std::move(mlp), std::move(optimizer),
      [=](std::uint32_t step) {
        engine::Batch batch = whole(step);
        if (step >= bad_step && step <= last_bad_step) batch.sample_ids[0] = -1;
        return batch;
      },
      [](const Tensor& output, const engine::Batch& batch) {
        const Tensor loss = engine::cross_entropy(output, batch.targets);
        return batch.sample_ids[0] == -1 ? engine::div(loss, 0.0) : loss;
      });
}

// Calls back where a fault strikes memory: no version tells of it.
struct Moments : engine::Observer {
  std::function<void(std::uint32_t step)> begin, after_optimizer;
  std::uint32_t step = 0;
  bool wants_ops() const noexcept override { return false; }
  void on_step_begin(std::uint32_t s) noexcept override {
    step = s;
    if (begin) begin(s);
  }
  void on_optimizer_end(bool) noexcept override {
    if (after_optimizer) after_optimizer(step);
  }
};

class TrainerWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = record::make_recorder({}, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(made) << made.status().message();
    recorder = std::move(*made);
  }
  void train(engine::Trainer& trainer, int steps, const WatchOptions& options = {}) {
    TrainerWatch watch(trainer, *recorder, options);
    for (int i = 0; i < steps; ++i) trainer.step();
    triggers = watch.triggers();
  }
  void finish() {
    ASSERT_TRUE(recorder->close());
    rows = script->all();
    for (const StringRecord& s : rows.strings) strings[s.id] = s.text;
  }
  // "begin 5 loss", "reproduced 5 loss".
  std::vector<std::string> replays() const {
    std::vector<std::string> out;
    for (const ReplayRecord& r : rows.replays) {
      out.push_back(std::string(replay_result_name(r.result)) + " " + std::to_string(r.step) + " " +
                    std::string(replay_trigger_name(r.trigger)));
    }
    return out;
  }
  std::string last_text() const { return rows.replays.empty() ? "" : strings.at(rows.replays.back().text); }

  std::shared_ptr<WriterScript> script = std::make_shared<WriterScript>();
  std::unique_ptr<Recorder> recorder;
  RecordBatch rows;
  std::map<StringId, std::string> strings{{0, ""}};
  std::uint32_t triggers = 0;
};

TEST_F(TrainerWatchTest, a_healthy_run_leaves_one_health_row_a_step_and_no_op) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  train(*trainer, 5);
  finish();
  EXPECT_THAT(rows.ops, IsEmpty());
  EXPECT_THAT(rows.values, IsEmpty());
  EXPECT_THAT(rows.replays, IsEmpty());
  ASSERT_EQ(rows.health.size(), 5u);
  ASSERT_EQ(rows.steps.size(), 5u);
  EXPECT_EQ(rows.sample_ids.size(), 5u);
  for (const HealthRecord& health : rows.health) {
    EXPECT_EQ(health.bad, 0u);
    EXPECT_GT(health.gradient_norm, 0);
    EXPECT_GT(health.weight_norm, 0);
  }
}

TEST_F(TrainerWatchTest, no_op_is_put_together_for_the_sentinel) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  const TrainerWatch watch(*trainer, *recorder);
  EXPECT_TRUE(engine::has_observers());
  EXPECT_FALSE(engine::ops_observed());
}

TEST_F(TrainerWatchTest, a_persistent_fault_is_replayed_and_reproduced) {
  auto trainer = make_trainer_with_bad_step(5, 5);
  train(*trainer, 8);
  finish();
  EXPECT_THAT(replays(), ElementsAre("begin 5 loss", "reproduced 5 loss"));
  EXPECT_THAT(last_text(), HasSubstr("the loss and 4 gradients at the optimizer boundary"));
  ASSERT_FALSE(rows.ops.empty());
  for (const OpRecord& op : rows.ops) {
    EXPECT_EQ(op.step, 5u);
    EXPECT_GE(op.seq, rows.replays[0].seq);
    EXPECT_LT(op.seq, rows.replays[1].seq);
  }
  EXPECT_EQ(rows.health[5].bad & 3u, 3u);  // loss and gradients
  EXPECT_EQ(strings.at(rows.health[5].first_bad), "loss");
  EXPECT_TRUE(std::isnan(rows.health[5].gradient_norm) || std::isinf(rows.health[5].gradient_norm));
  // Batches and scaler events are those of the run: none twice.
  EXPECT_EQ(rows.sample_ids.size(), 8u);
  EXPECT_EQ(rows.steps.size(), 8u);
}

TEST_F(TrainerWatchTest, a_transient_fault_is_clean_in_the_replay) {
  auto trainer = make_trainer([](std::uint32_t call) { return call == 5 ? kNaN : 1.0; });
  train(*trainer, 7);
  finish();
  ASSERT_GE(rows.replays.size(), 2u);
  EXPECT_EQ(replays()[0], "begin 5 loss");
  EXPECT_EQ(replays()[1], "clean 5 loss");
  EXPECT_THAT(strings.at(rows.replays[1].text), HasSubstr("the loss was not finite and is finite in the replay"));
}

TEST_F(TrainerWatchTest, norms_of_the_steps_before_are_written_on_a_trip_and_once) {
  auto trainer = make_trainer_with_bad_step(5, 5);
  train(*trainer, 8, {.ring_steps = 3});
  finish();
  std::map<std::uint32_t, int> rows_of_step;
  for (const NormRecord& norm : rows.norms) ++rows_of_step[norm.step];
  // 4 gradients and 4 parameters; those that step 5 leaves behind are not known at its optimizer boundary
  EXPECT_EQ(rows_of_step, (std::map<std::uint32_t, int>{{3, 8}, {4, 8}, {5, 4}}));
  EXPECT_LE(rows.norms.back().seq, rows.replays.front().seq);
}

TEST_F(TrainerWatchTest, the_budget_is_obeyed_and_said_when_it_is_spent) {
  auto trainer = make_trainer([](std::uint32_t call) { return call % 4 == 3 ? kNaN : 1.0; }, /*scaled=*/true);
  train(*trainer, 40, {.max_triggers = 2});
  finish();
  EXPECT_EQ(triggers, 2u);
  int begun = 0, refused = 0;
  for (const ReplayRecord& r : rows.replays) {
    begun += r.result == ReplayResult::kBegin ? 1 : 0;
    refused += r.result == ReplayResult::kRefused ? 1 : 0;
  }
  EXPECT_EQ(begun, 2);
  EXPECT_GT(refused, 0);
  EXPECT_THAT(last_text(), HasSubstr("No replay is left"));
}

TEST_F(TrainerWatchTest, a_step_whose_batch_was_written_to_is_refused_with_the_reason) {
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 64}});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 0.1});
  engine::Trainer trainer(std::move(mlp), std::move(optimizer), engine::upscaling_train_batches(4, 1, DType::kF32),
                          [](const Tensor& output, const engine::Batch& batch) {
                            Tensor targets = batch.targets;
                            return engine::mse_loss(output, engine::fill_(targets, kNaN));
                          });
  train(trainer, 1);
  finish();
  EXPECT_THAT(replays(), ElementsAre("refused 0 loss"));
  EXPECT_THAT(last_text(), HasSubstr("was written to after it was loaded"));
  EXPECT_THAT(rows.ops, IsEmpty());
  EXPECT_FALSE(rows.marks.empty());  // the bad gradients at least
}

TEST_F(TrainerWatchTest, a_parameter_that_changed_unseen_is_found_before_the_optimizer) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  Moments moments;
  moments.begin = [&](std::uint32_t step) {
    if (step == 4) trainer->model().named_parameters()[0].tensor.data<float>()[7] += 0.25f;
  };
  {
    const engine::HookHandle handle = engine::add_observer(moments);
    train(*trainer, 6);
  }
  finish();
  ASSERT_EQ(rows.changed.size(), 1u);
  EXPECT_EQ(rows.changed[0].step, 4u);
  EXPECT_EQ(rows.changed[0].since_step, 3u);
  EXPECT_NE(rows.changed[0].after, 0u);
  EXPECT_EQ(rows.health[4].bad, kHealthChanged);
  EXPECT_EQ(strings.at(rows.health[4].first_bad), "fc1.weight");
  EXPECT_EQ(rows.health[5].bad, 0u);
  EXPECT_THAT(replays(), ElementsAre("begin 4 changed", "reproduced 4 changed"));
  // What the replay reads is what was found.
  bool read = false;
  for (const OpArg& in : rows.inputs) read = read || in.value == rows.changed[0].after;
  EXPECT_TRUE(read);
}

TEST_F(TrainerWatchTest, a_parameter_that_the_program_loaded_between_steps_is_bad_but_no_secret) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  {
    const TrainerWatch watch(*trainer, *recorder);
    trainer->step();
    Tensor weight = trainer->model().named_parameters()[0].tensor;
    weight.copy_from(Tensor::full(weight.sizes(), kNaN, weight.dtype()));
    trainer->step();
    for (const auto& tensors : {trainer->model().named_parameters(), trainer->optimizer().named_state()}) {
      for (const auto& [path, tensor] : tensors) {
        Tensor(tensor).copy_from(Tensor::full(tensor.sizes(), 0.01, tensor.dtype()));
      }
    }
    trainer->step();
  }
  finish();
  EXPECT_THAT(rows.changed, IsEmpty());
  EXPECT_EQ(strings.at(rows.health[1].first_bad), "fc1.weight");
  EXPECT_THAT(replays(), ElementsAre("begin 1 parameter", "reproduced 1 parameter"));
  EXPECT_EQ(rows.health[2].bad, 0u);
}

TEST_F(TrainerWatchTest, what_only_the_optimizer_left_bad_is_replayed_from_a_copy) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  Moments moments;
  moments.after_optimizer = [&](std::uint32_t step) {
    if (step == 4) trainer->model().named_parameters()[0].tensor.data<float>()[7] = static_cast<float>(kNaN);
  };
  {
    const engine::HookHandle handle = engine::add_observer(moments);
    train(*trainer, 5);
  }
  finish();
  EXPECT_THAT(replays(), ElementsAre("begin 4 parameter", "clean 4 parameter"));
  EXPECT_THAT(last_text(), HasSubstr("parameter fc1.weight was not finite and is finite in the replay"));
}

TEST_F(TrainerWatchTest, without_a_copy_it_is_refused_and_the_bad_parameter_is_marked) {
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  Moments moments;
  moments.after_optimizer = [&](std::uint32_t step) {
    if (step == 4) trainer->model().named_parameters()[0].tensor.data<float>()[7] = static_cast<float>(kNaN);
  };
  {
    const engine::HookHandle handle = engine::add_observer(moments);
    train(*trainer, 5, {.close_bytes = 0});
  }
  finish();
  EXPECT_THAT(replays(), ElementsAre("refused 4 parameter"));
  EXPECT_THAT(last_text(), HasSubstr("no copy"));
  ASSERT_EQ(rows.marks.size(), 1u);
  EXPECT_EQ(rows.marks[0].kind, TensorRole::kParameter);
  EXPECT_EQ(strings.at(rows.marks[0].path), "fc1.weight");
}

TEST_F(TrainerWatchTest, state_beyond_what_the_audit_proved_is_told_as_changed) {
  // given state that is not read every step, and a flip in it
  auto trainer = make_trainer([](std::uint32_t) { return 1.0; });
  Moments moments;
  moments.begin = [&](std::uint32_t step) {
    if (step != 4) return;
    for (const auto& [path, tensor] : trainer->optimizer().named_state()) {
      if (path == "fc1.weight.exp_avg") Tensor(tensor).data<float>()[7] = std::numeric_limits<float>::infinity();
    }
  };
  {
    const engine::HookHandle handle = engine::add_observer(moments);
    train(*trainer, 5, {.close_bytes = 0});
  }
  finish();
  // then a parameter that the audit had proved to stay finite gives it away
  ASSERT_EQ(rows.changed.size(), 1u);
  EXPECT_EQ(rows.changed[0].step, 4u);
  EXPECT_EQ(rows.health[4].bad & kHealthChanged, kHealthChanged);
  bool named = false;
  for (const MarkRecord& mark : rows.marks) {
    named = named || (mark.value == rows.changed[0].after && strings.at(mark.path) == "fc1.weight.exp_avg");
  }
  EXPECT_TRUE(named);
}

// A model with one buffer of 2x2, and labels that the loss does not read; the loss is bad in step 5.
std::unique_ptr<engine::Trainer> make_trainer_with_buffer(const std::vector<double>& buffer, double label = 0) {
  struct WithBuffer : engine::Mlp {
    WithBuffer(const engine::MlpOptions& options, const std::vector<double>& values) : Mlp(options) {
      register_buffer("mask", Tensor::from_values(values, {2, 2}, DType::kF32));
    }
  };
  auto model = std::make_unique<WithBuffer>(engine::MlpOptions{.sizes = {64, 10}}, buffer);
  auto optimizer = engine::make_optimizer(model->named_parameters(), {.algorithm = "sgd", .lr = 0});
  auto whole = engine::digits_train_batches(4, 1, DType::kF32);
  return std::make_unique<engine::Trainer>(
      std::move(model), std::move(optimizer),
      [=](std::uint32_t step) {
        engine::Batch batch = whole(step);
        batch.targets = Tensor::full({4}, label, DType::kF32);
        if (step == 5) batch.sample_ids[0] = -1;
        return batch;
      },
      [](const Tensor& output, const engine::Batch& batch) {
        const Tensor loss = engine::sum(output);
        return batch.sample_ids[0] == -1 ? engine::mul(loss, kNaN) : loss;
      });
}

TEST_F(TrainerWatchTest, a_mask_of_infinities_is_no_bad_buffer_and_hides_no_fault) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  auto trainer = make_trainer_with_buffer({0, -kInf, 0, 0}, /*label=*/-kInf);
  train(*trainer, 6);
  finish();
  ASSERT_EQ(rows.health.size(), 6u);
  for (const HealthRecord& health : rows.health) {
    EXPECT_EQ(health.bad, health.step == 5 ? 7u : 0u) << health.step;  // loss, gradients, parameters
  }
  EXPECT_THAT(replays(), ElementsAre("begin 5 loss", "reproduced 5 loss"));
}

TEST_F(TrainerWatchTest, a_nan_in_a_buffer_is_bad_also_where_the_buffer_is_a_mask) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  auto trainer = make_trainer_with_buffer({0, -kInf, 0, 0});
  {
    const TrainerWatch watch(*trainer, *recorder);
    trainer->step();
    trainer->step();
    Tensor mask = trainer->model().named_buffers()[0].tensor;
    mask.copy_from(Tensor::full(mask.sizes(), kNaN, mask.dtype()));
    trainer->step();
  }
  finish();
  EXPECT_EQ(rows.health[1].bad, 0u);
  EXPECT_EQ(rows.health[2].bad, 1u << static_cast<unsigned>(TensorRole::kBuffer));
  EXPECT_THAT(replays(), ElementsAre("begin 2 buffer", "reproduced 2 buffer"));
}

TEST_F(TrainerWatchTest, a_nan_in_a_label_that_nothing_reads_is_said_and_not_replayed) {
  auto trainer = make_trainer_with_buffer({0, 0, 0, 0}, /*label=*/kNaN);
  train(*trainer, 6);
  finish();
  EXPECT_EQ(rows.health[0].bad, 1u << static_cast<unsigned>(TensorRole::kLabel));
  EXPECT_THAT(replays(), ElementsAre("begin 5 batch", "reproduced 5 batch"));
}

// Hands on no more than the order of replays and marks.
struct Order final : testing_support::SilentRecorder {
  std::vector<std::string> told;
  void on_mark(const MarkEvent&) noexcept override { told.emplace_back("mark"); }
  void on_replay(const ReplayEvent& event) noexcept override { told.emplace_back(replay_result_name(event.result)); }
};

TEST(Refusal, comes_before_the_marks_that_it_says_how_to_read) {
  Order order;
  auto trainer = make_trainer_with_bad_step(1, 1);
  {
    const TrainerWatch watch(*trainer, order, {.replay = false});
    for (int i = 0; i < 2; ++i) trainer->step();
  }
  EXPECT_THAT(order.told, ElementsAre("refused", "mark", "mark", "mark", "mark"));
}

TEST_F(TrainerWatchTest, an_update_that_would_divide_by_zero_is_foreseen_and_replayed) {
  auto mlp = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 16, 10}, .dtype = DType::kF16});
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 1e-3, .eps = 1e-8});
  engine::Trainer trainer(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(16, 1, DType::kF16),
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
  train(trainer, 1, {.close_bytes = 0});
  finish();
  EXPECT_THAT(replays(), ElementsAre("begin 0 audit", "reproduced 0 audit"));
  EXPECT_NE(rows.health[0].bad & kHealthAudit, 0u);
  EXPECT_NE(rows.health[0].bad & (1u << static_cast<unsigned>(TensorRole::kParameter)), 0u);
}

TEST_F(TrainerWatchTest, another_trainer_on_the_thread_is_not_watched) {
  auto watched = make_trainer([](std::uint32_t) { return 1.0; });
  auto other = make_trainer([](std::uint32_t) { return kNaN; });
  {
    TrainerWatch watch(*watched, *recorder);
    watched->step();
    other->step();
    watched->step();
  }
  finish();
  EXPECT_EQ(rows.steps.size(), 2u);
  EXPECT_THAT(rows.replays, IsEmpty());
}

TEST_F(TrainerWatchTest, watching_does_not_change_a_bit_though_steps_are_replayed_skipped_and_bad) {
  for (const WatchLevel level : {WatchLevel::kSentinel, WatchLevel::kOps}) {
    // given a scale that calibrates and grows too far, clipping, micro-batches
    const auto factor = [](std::uint32_t) { return 1.0; };
    auto plain = make_trainer(factor, /*scaled=*/true), watched = make_trainer(factor, /*scaled=*/true);
    int skipped = 0;
    for (int i = 0; i < 150; ++i) skipped += plain->step().skipped ? 1 : 0;
    // when
    train(*watched, 150, {.level = level, .trigger_distance = 2});
    // then
    EXPECT_EQ(bytes_of(*plain), bytes_of(*watched)) << watch_level_name(level);
    EXPECT_GT(skipped, 2);
    EXPECT_EQ(triggers > 1, level != WatchLevel::kOps);
  }
}

TEST(WatchLevels, have_names) {
  for (const WatchLevel level : {WatchLevel::kSentinel, WatchLevel::kOps}) {
    EXPECT_EQ(parse_watch_level(watch_level_name(level)), level);
  }
  EXPECT_EQ(parse_watch_level("off"), std::nullopt);
}

}  // namespace
}  // namespace nanhunt::hooks
