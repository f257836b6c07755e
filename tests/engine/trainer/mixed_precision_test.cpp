// SPDX-License-Identifier: Apache-2.0
// Trainer with autocast, loss scaling, accumulation and clipping: the order of a step, its bits against a loop written
// out, and skipped steps.
#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine {
namespace {

using ::testing::ElementsAre;
using testing::bytes_of;
using testing::EventLog;
using Lines = std::vector<std::string>;

const MlpOptions kModel{.sizes = {64, 16, 10}};
const OptimizerOptions kAdam{.algorithm = "adam", .lr = 1e-2};
constexpr std::int64_t kBatch = 16;

Tensor loss_of(const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); }

std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const OptimizerOptions& optimizer = kAdam) {
  auto model = std::make_unique<Mlp>(kModel);
  auto parameters = model->named_parameters();
  return std::make_unique<Trainer>(std::move(model), make_optimizer(std::move(parameters), optimizer),
                                   digits_train_batches(kBatch, 3, DType::kF32), loss_of, options);
}

TEST(MixedPrecisionTrainer, runs_a_step_in_the_order_of_torch) {
  // given a one-layer run that scales, accumulates and clips
  auto model = std::make_unique<Sequential>();
  RandomStream random(1, 0);
  model->append("fc1", std::make_unique<Linear>(64, 10, random));
  const NamedTensor weight = model->named_parameters()[0];
  auto optimizer = make_optimizer({weight}, {.algorithm = "sgd", .lr = 0.5});
  Trainer trainer(std::move(model), std::move(optimizer), digits_train_batches(1, 1, DType::kF32), loss_of,
                  {.autocast = AutocastOptions{},
                   .scaler = GradScalerOptions{.init_scale = 1024},
                   .micro_batches = 2,
                   .clip_norm = 0.25});
  EventLog log;
  const HookHandle handle = add_observer(log);
  // when
  const StepResult result = trainer.step();
  // then
  Lines lines;
  for (const std::string& line : log.lines) {
    const bool kept = line.starts_with("scaler") || line.starts_with("boundary") || line.starts_with("stepped") ||
                      line.starts_with("batch") || line.starts_with("mark boundary") || line.starts_with("mark loss") ||
                      line.starts_with("op ") || line.starts_with("end");
    if (kept) lines.push_back(line.substr(0, line.find('[')));
  }
  const Lines micro_batch = {"op forward fc1 _to_copy",
                             "op forward fc1 _to_copy",
                             "op forward fc1 _to_copy",
                             "op forward fc1 t",
                             "op forward fc1 addmm",
                             "op loss <loss> log_softmax",
                             "op loss <loss> nll_loss",
                             "op loss <loss> div",
                             "mark loss loss",
                             "op scale <loss> mul",
                             "scaler scale",
                             "op backward <loss> mul_backward",
                             "op backward <loss> div_backward",
                             "op backward <loss> nll_loss_backward",
                             "op backward <loss> log_softmax_backward",
                             "op backward fc1 addmm_backward",
                             "op backward fc1 t_backward",
                             "op backward fc1 _to_copy_backward",
                             "op backward fc1 _to_copy_backward"};
  Lines expected{"batch 0 "};
  expected.insert(expected.end(), micro_batch.begin(), micro_batch.end());
  expected.insert(expected.begin() + 11, "scaler create");
  expected.push_back("batch 1 ");
  expected.insert(expected.end(), micro_batch.begin(), micro_batch.end());
  for (const char* line :
       {"op backward fc1 add", "op backward fc1 add",  // the second micro-batch adds to the first
        "op unscale fc1.weight _amp_foreach_non_finite_check_and_unscale_", "scaler unscale",
        "op clip fc1.weight norm", "op clip  stack", "op clip  norm", "op clip  add", "op clip  reciprocal",
        "op clip  mul", "op clip  clamp", "op clip fc1.weight mul_", "scaler clip", "mark boundary_gradient fc1.weight",
        "boundary", "op optimizer fc1.weight add_", "scaler step", "stepped", "op update  _amp_update_scale_",
        "scaler update", "end 0"}) {
    expected.emplace_back(line);
  }
  EXPECT_THAT(lines, ::testing::ElementsAreArray(expected));
  EXPECT_EQ(result.scale, 1024);
  EXPECT_EQ(log.last_scale, 1024);
  EXPECT_FALSE(log.last_skipped);
}

// The loop a user would write, without a Trainer.
struct Loop {
  Loop(const TrainerOptions& given, const GradScalerOptions& scale) : options(given), scaler(scale) {}

  double step(std::uint32_t step) {
    optimizer->zero_grad();
    double total = 0;
    for (std::uint32_t m = 0; m < options.micro_batches; ++m) {
      const Batch batch = batches(step * options.micro_batches + m);
      Tensor loss;
      {
        const Autocast region(*options.autocast);
        loss = loss_of(model(batch.inputs), batch);
        if (options.micro_batches > 1) loss = div(loss, options.micro_batches);
      }
      total += loss.item();
      scaler.scale(loss).backward();
    }
    scaler.unscale_(*optimizer);
    if (options.clip_norm) clip_grad_norm_(optimizer->parameters(), *options.clip_norm);
    scaler.step(*optimizer);
    scaler.update();
    return total;
  }

  TrainerOptions options;
  Mlp model{kModel};
  std::unique_ptr<Optimizer> optimizer = make_optimizer(model.named_parameters(), kAdam);
  BatchSource batches = digits_train_batches(kBatch, 3, DType::kF32);
  GradScaler scaler;
};

TEST(MixedPrecisionTrainer, computes_the_bits_of_the_loop_written_out) {
  for (std::uint32_t micro_batches : {1U, 3U}) {
    // given a scale that starts so high that the first steps are skipped
    const GradScalerOptions scale{.init_scale = 0x1p24, .growth_interval = 4};
    const TrainerOptions options{.autocast = AutocastOptions{},
                                 .scaler = scale,
                                 .micro_batches = micro_batches,
                                 .clip_norm = 1};
    auto trainer = make_trainer(options);
    Loop loop(options, scale);
    int skipped = 0;
    // when both train
    for (std::uint32_t i = 0; i < 20; ++i) {
      const StepResult result = trainer->step();
      EXPECT_EQ(result.loss, loop.step(i));
      skipped += result.skipped;
    }
    // then
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, 20);
    EXPECT_EQ(bytes_of(trainer->model().named_parameters()), bytes_of(loop.model.named_parameters()));
    EXPECT_EQ(trainer->scaler()->saved(), loop.scaler.saved());
  }
}

TEST(MixedPrecisionTrainer, a_skipped_step_changes_nothing_but_the_scale_and_says_so) {
  auto trainer = make_trainer({.autocast = AutocastOptions{}, .scaler = GradScalerOptions{.init_scale = 0x1p30}});
  EventLog log;
  const HookHandle handle = add_observer(log);
  const auto before = bytes_of(*trainer);
  const StepResult result = trainer->step();
  EXPECT_TRUE(result.skipped);
  EXPECT_TRUE(log.last_skipped);
  EXPECT_EQ(log.last_scale, 0x1p30);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_EQ(trainer->scaler()->get_scale(), 0x1p29);
  EXPECT_EQ(bytes_of(*trainer), before);
  EXPECT_LT(log.index_of("mark boundary_gradient fc1.weight"), log.index_of("boundary"));  // bad gradients are marked too
  EXPECT_LT(log.index_of("scaler skip"), log.index_of("skipped"));
  EXPECT_TRUE(log.starting_with("op optimizer").empty());
}

TEST(MixedPrecisionTrainer, micro_batches_together_have_the_gradient_of_one_large_batch) {
  // given: fp32, so that both are the same sum but for its order
  std::vector<double> together, apart;
  for (auto* gradient : {&together, &apart}) {
    const bool accumulates = gradient == &apart;
    auto model = std::make_unique<Mlp>(kModel);
    auto parameters = model->named_parameters();
    Trainer trainer(
        std::move(model), make_optimizer(std::move(parameters), {.algorithm = "sgd", .lr = 0}),
        [accumulates](std::uint32_t step) {
          std::vector<std::int64_t> ids;
          for (std::int64_t i = 0; i < (accumulates ? 8 : 32); ++i) ids.push_back(i + 8 * static_cast<int>(step));
          return make_digits_batch(ids, DType::kF32);
        },
        loss_of, {.micro_batches = accumulates ? 4U : 1U});
    trainer.set_boundary_callback(
        [gradient](Trainer& at) { *gradient = at.optimizer().parameters()[0].tensor.grad().to_vector(); });
    trainer.step();
  }
  // then
  ASSERT_EQ(together.size(), apart.size());
  for (std::size_t i = 0; i < together.size(); ++i) EXPECT_NEAR(together[i], apart[i], 1e-7);
}

TEST(MixedPrecisionTrainer, losses_that_are_not_averaged_add_up) {
  const StepResult averaged = make_trainer({.micro_batches = 4})->step();
  const StepResult summed = make_trainer({.micro_batches = 4, .average_micro_batches = false})->step();
  EXPECT_NEAR(summed.loss, 4 * averaged.loss, 1e-5);
}

TEST(MixedPrecisionTrainer, clipping_before_unscale_is_seen_in_its_order_and_shrinks_the_gradients) {
  const auto boundary_norm = [](bool before) {
    auto trainer = make_trainer({.scaler = GradScalerOptions{.init_scale = 1024},
                                 .clip_norm = 0.5,
                                 .clip_before_unscale = before});
    EventLog log;
    const HookHandle handle = add_observer(log);
    double norm_sq = 0;
    trainer->set_boundary_callback([&](Trainer& at) {
      for (const auto& [path, parameter] : at.optimizer().parameters()) {
        for (double g : parameter.grad().to_vector()) norm_sq += g * g;
      }
    });
    trainer->step();
    EXPECT_EQ(log.index_of("scaler clip") < log.index_of("scaler unscale"), before);
    return std::sqrt(norm_sq);
  };
  EXPECT_NEAR(boundary_norm(false), 0.5, 1e-4);
  EXPECT_NEAR(boundary_norm(true), 0.5 / 1024, 1e-6);
}

TEST(MixedPrecisionTrainer, gradients_kept_after_a_skip_stay_bad_for_ever) {
  const auto skipped_of = [](bool keep) {
    auto trainer = make_trainer({.autocast = AutocastOptions{},
                                 .scaler = GradScalerOptions{.init_scale = 0x1p24},
                                 .keep_skipped_gradients = keep});
    int skipped = 0;
    for (int i = 0; i < 30; ++i) skipped += trainer->step().skipped;
    return skipped;
  };
  EXPECT_EQ(skipped_of(true), 30);
  EXPECT_LT(skipped_of(false), 15);
}

TEST(MixedPrecisionTrainer, a_static_scale_steps_whatever_the_gradients_are) {
  auto trainer = make_trainer({.autocast = AutocastOptions{},
                               .scaler = GradScalerOptions{.init_scale = 0x1p30, .dynamic = false}});
  EXPECT_FALSE(trainer->step().skipped);
  EXPECT_TRUE(std::isnan(trainer->step().loss));
  EXPECT_EQ(trainer->scaler()->get_scale(), 0x1p30);
}

TEST(MixedPrecisionTrainer, ends_with_the_step_in_which_the_library_of_its_scaler_gives_up) {
  // given a scale that is at its smallest and too large all the same
  auto trainer = make_trainer({.autocast = AutocastOptions{},
                               .scaler = DeepSpeedScalerOptions{.init_scale = 0x1p30, .min_scale = 0x1p29}});
  EventLog log;
  const HookHandle handle = add_observer(log);
  const auto before = bytes_of(*trainer);
  const auto start = trainer->snapshot();
  // when: hysteresis, one halving, and no further
  EXPECT_EQ(trainer->step().ended_by, "");
  EXPECT_EQ(trainer->step().ended_by, "");
  const StepResult last = trainer->step();
  // then that step is over, and there is no other until the trainer is put back
  EXPECT_EQ(last.ended_by, "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
  EXPECT_TRUE(last.skipped);
  EXPECT_LT(log.index_of("scaler gave_up"), log.index_of("end 2"));
  EXPECT_EQ(bytes_of(*trainer), before);
  EXPECT_THROW(trainer->step(), std::runtime_error);
  trainer->restore(*start);
  EXPECT_EQ(trainer->step().ended_by, "");
}

TEST(MixedPrecisionTrainer, changes_nothing_when_it_is_observed) {
  const TrainerOptions options{.autocast = AutocastOptions{},
                               .scaler = GradScalerOptions{.init_scale = 0x1p22},
                               .micro_batches = 2,
                               .clip_norm = 1};
  auto plain = make_trainer(options), watched = make_trainer(options);
  EventLog log;
  {
    const HookHandle handle = add_observer(log);
    for (int i = 0; i < 8; ++i) watched->step();
  }
  for (int i = 0; i < 8; ++i) plain->step();
  EXPECT_EQ(bytes_of(*plain), bytes_of(*watched));
  EXPECT_EQ(plain->scaler()->saved(), watched->scaler()->saved());
}

struct ReplayCase {
  std::string name;
  TrainerOptions options;
};
class MixedPrecisionReplay : public ::testing::TestWithParam<ReplayCase> {};
INSTANTIATE_TEST_SUITE_P(
    Runs, MixedPrecisionReplay,
    ::testing::Values(ReplayCase{"calibrating",
                                 {.autocast = AutocastOptions{},
                                  .scaler = GradScalerOptions{.init_scale = 0x1p24, .growth_interval = 2}}},
                      ReplayCase{"bf16_without_scaler", {.autocast = AutocastOptions{.dtype = DType::kBF16}}},
                      ReplayCase{"accumulating_and_clipping",
                                 {.autocast = AutocastOptions{},
                                  .scaler = GradScalerOptions{.init_scale = 0x1p23, .growth_interval = 2},
                                  .micro_batches = 3,
                                  .clip_norm = 0.1}},
                      ReplayCase{"with_hysteresis",
                                 {.autocast = AutocastOptions{},
                                  .scaler = MegatronScalerOptions{.initial_scale = 0x1p24, .growth_interval = 2}}},
                      ReplayCase{"dropping_gradients_as_fastai",
                                 {.autocast = AutocastOptions{},
                                  .scaler = FastaiScalerOptions{.loss_scale = 0x1p24, .max_noskip = 2}}},
                      ReplayCase{"keeping_bad_gradients",
                                 {.autocast = AutocastOptions{},
                                  .scaler = GradScalerOptions{.init_scale = 0x1p24},
                                  .keep_skipped_gradients = true}}),
    [](const auto& given) { return given.param.name; });

TEST_P(MixedPrecisionReplay, from_any_step_gives_the_same_bits_and_the_same_scale) {
  // given a run, with a snapshot before each of its steps
  auto trainer = make_trainer(GetParam().options);
  std::vector<std::shared_ptr<const Trainer::Snapshot>> snapshots;
  std::vector<std::vector<std::byte>> after;
  std::vector<StepResult> results;
  for (int i = 0; i < 8; ++i) {
    snapshots.push_back(trainer->snapshot());
    results.push_back(trainer->step());
    after.push_back(bytes_of(*trainer));
  }
  // when it is put back to each, in the same trainer or in a new one
  for (std::size_t i : {5U, 0U, 7U, 1U}) {
    for (bool fresh : {false, true}) {
      auto other = make_trainer(GetParam().options);
      Trainer& again = fresh ? *other : *trainer;
      again.restore(*snapshots[i]);
      // then the steps from there repeat themselves
      for (std::size_t k = i; k < results.size(); ++k) {
        const StepResult repeated = again.step();
        EXPECT_EQ(repeated.loss, results[k].loss) << "step " << k;
        EXPECT_EQ(repeated.skipped, results[k].skipped) << "step " << k;
        EXPECT_EQ(repeated.scale, results[k].scale) << "step " << k;
        EXPECT_EQ(bytes_of(again), after[k]) << "step " << k;
      }
    }
  }
}

TEST(MixedPrecisionTrainer, refuses_a_step_without_micro_batches) {
  EXPECT_THROW(make_trainer({.micro_batches = 0}), std::invalid_argument);
}

TEST(MixedPrecisionTrainer, tells_whoever_comes_after_an_unwatched_step_what_it_starts_from) {
  const auto trainer = make_trainer({.autocast = AutocastOptions{}, .scaler = GradScalerOptions{.init_scale = 1024}});
  const auto watched_step = [&] {
    EventLog log;
    const HookHandle handle = add_observer(log);
    trainer->step();
    return log;
  };
  const EventLog first = watched_step();
  // given nobody watched in between
  trainer->step();
  const EventLog later = watched_step();
  // then the later one is told as much as the first: scaler, weights and state before their first use
  EXPECT_EQ(later.starting_with("scaler create").size(), 1U);
  EXPECT_EQ(later.starting_with("mark parameter"), first.starting_with("mark parameter"));
  EXPECT_LT(later.index_of("mark parameter fc1.weight"), later.index_of("enter fc1"));
}

}  // namespace
}  // namespace nanhunt::engine
