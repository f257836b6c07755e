// SPDX-License-Identifier: Apache-2.0
// fp32 against mixed precision: a layer that a recipe cannot hold is named by experiment, and nobody is on a healthy
// run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/precision.h"
#include "src/engine/precision/layer_search.h"
#include "tests/engine/precision/planted.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A clock whose every look takes a thousandth longer than the one before.
std::function<double()> made_up_clock() {
  return [now = 0.0, step = 0.0]() mutable { return now += step += 0.001; };
}

PrecisionOptions options_with(std::initializer_list<const char*> recipes) {
  PrecisionOptions options;
  for (const char* name : recipes) options.recipes.push_back(find_recipe(name));
  options.seconds = made_up_clock();
  return options;
}

const LayerPrecision& layer_of(const PrecisionRun& run, const std::string& name) {
  for (const LayerPrecision& layer : run.layers) {
    if (layer.layer == name) return layer;
  }
  throw std::out_of_range(name);
}

const PrecisionRun& run_of(const PrecisionComparison& comparison, const std::string& recipe) {
  for (const PrecisionRun& run : comparison.runs) {
    if (run.recipe == recipe) return run;
  }
  throw std::out_of_range(recipe);
}

TEST(ComparePrecision, names_the_layer_that_overflows_in_fp16_and_has_seen_the_loss_restored_without_it) {
  // given: a layer whose numbers pass 65504 in every step
  const Workload workload = planted_workload(Planted::kOverflow);
  // when
  const PrecisionComparison comparison = compare_precision(workload, options_with({"fp16", "bf16"}));
  // then: fp16 is lost, and one layer is why
  const PrecisionRun& fp16 = run_of(comparison, "torch-amp-fp16");
  EXPECT_EQ(fp16.outcome, PrecisionOutcome::kNonFinite);
  EXPECT_EQ(fp16.nonfinite, kPlantedSteps);
  EXPECT_THAT(fp16.keep, ElementsAre(kPlantedLayer));
  EXPECT_EQ(fp16.layers.front().layer, kPlantedLayer) << "the part, not the whole that holds it";
  EXPECT_GT(layer_of(fp16, kPlantedLayer).overflowed, 0U);
  EXPECT_TRUE(std::isinf(layer_of(fp16, kPlantedLayer).alone_error));
  EXPECT_LT(layer_of(fp16, kPlantedLayer).kept_error, 0.05);
  EXPECT_EQ(layer_of(fp16, "fc1").overflowed, 0U) << "what comes of it elsewhere is not held against others";
  EXPECT_LT(layer_of(fp16, "fc2").alone_error, 0.05);
  EXPECT_TRUE(std::isinf(layer_of(fp16, "fc2").kept_error));
  // and a training with that layer in fp32 shows it
  const auto restored = std::find_if(fp16.trials.begin(), fp16.trials.end(),
                                     [](const KeptTrial& trial) { return !trial.all_layers && trial.restored; });
  ASSERT_NE(restored, fp16.trials.end());
  EXPECT_THAT(restored->layers, ElementsAre(kPlantedLayer));
  EXPECT_LE(restored->final_loss, comparison.allowed_loss);
  EXPECT_EQ(restored->nonfinite, 0U);
  // and so does one from another seed, from which the recipe fails as well
  EXPECT_TRUE(fp16.trials.front().other_seed && fp16.trials.front().layers.empty() && !fp16.trials.front().restored);
  EXPECT_TRUE(fp16.trials.back().other_seed && fp16.trials.back().restored);
  // while bf16 has the range
  const PrecisionRun& bf16 = run_of(comparison, "torch-amp-bf16");
  EXPECT_EQ(bf16.outcome, PrecisionOutcome::kSame);
  EXPECT_THAT(bf16.keep, IsEmpty());
  EXPECT_THAT(bf16.trials, IsEmpty());
}

TEST(ComparePrecision, names_the_layer_whose_numbers_are_flushed_to_zero_in_fp16) {
  const PrecisionComparison comparison =
      compare_precision(planted_workload(Planted::kUnderflow), options_with({"fp16", "bf16"}));
  const PrecisionRun& fp16 = run_of(comparison, "torch-amp-fp16");
  EXPECT_EQ(fp16.outcome, PrecisionOutcome::kWorse) << "every number is finite, and nothing is learnt";
  EXPECT_EQ(fp16.nonfinite, 0U);
  EXPECT_THAT(fp16.keep, ElementsAre(kPlantedLayer));
  EXPECT_GT(layer_of(fp16, kPlantedLayer).flushed, 0U);
  EXPECT_EQ(layer_of(fp16, kPlantedLayer).overflowed, 0U);
  EXPECT_EQ(run_of(comparison, "torch-amp-bf16").outcome, PrecisionOutcome::kSame);
}

TEST(ComparePrecision, of_the_healthy_twin_names_no_layer_and_tries_none) {
  const PrecisionComparison comparison =
      compare_precision(planted_workload(Planted::kNothing), options_with({"fp16", "bf16", "O2", "16-mixed"}));
  ASSERT_EQ(comparison.runs.size(), 5U);
  for (const PrecisionRun& run : comparison.runs) {
    SCOPED_TRACE(run.recipe);
    EXPECT_EQ(run.outcome, PrecisionOutcome::kSame);
    EXPECT_THAT(run.keep, IsEmpty());
    EXPECT_THAT(run.trials, IsEmpty());
    EXPECT_LE(run.final_loss, comparison.allowed_loss);
    EXPECT_EQ(run.steps.size(), kPlantedSteps);
    for (const LayerPrecision& layer : run.layers) {
      EXPECT_EQ(layer.overflowed, 0U) << layer.layer;
      EXPECT_LT(layer.alone_error, 0.1) << layer.layer;
    }
    ASSERT_TRUE(run.validation && run.validation_in_fp32 && run.accuracy);
    EXPECT_NEAR(run.validation->loss, run.validation_in_fp32->loss, 0.02) << "under autocast and without";
    EXPECT_NEAR(*run.validation->accuracy, *run.validation_in_fp32->accuracy, 0.02);
    EXPECT_GT(*run.accuracy, 0.8);
  }
}

Course course_with(std::vector<double> losses) {
  Course course;
  for (std::uint32_t step = 0; const double loss : losses) course.steps.push_back({step++, loss, false, 1});
  course.validation_loss = losses.back();
  return course;
}

TEST(ComparePrecision, takes_no_difference_for_harm_that_another_seed_makes_as_well) {
  // Given a recipe that ends somewhat higher than fp32, by more than the tolerance,
  const Course fp32 = course_with({2.0, 0.5}), recipe = course_with({2.0, 0.7});
  // then it is as good where fp32 from another seed differs as much,
  EXPECT_EQ(judge(recipe, make_reference(fp32, 0.05, course_with({2.0, 0.75}))).outcome, PrecisionOutcome::kSame);
  EXPECT_EQ(judge(recipe, make_reference(fp32, 0.05, course_with({2.0, 0.25}))).outcome, PrecisionOutcome::kSame);
  // and worse where that comes to the same loss, or to none.
  EXPECT_EQ(judge(recipe, make_reference(fp32, 0.05, course_with({2.0, 0.5}))).outcome, PrecisionOutcome::kWorse);
  EXPECT_EQ(judge(recipe, make_reference(fp32, 0.05, course_with({2.0, NAN}))).outcome, PrecisionOutcome::kWorse);
  EXPECT_EQ(judge(recipe, make_reference(fp32, 0.05, Course())).outcome, PrecisionOutcome::kWorse);
}

TEST(ComparePrecision, keeps_memory_of_each_kind_apart) {
  const PrecisionComparison comparison =
      compare_precision(planted_workload(Planted::kNothing), options_with({"fp16", "O2", "16-true"}));
  const auto bytes = [&](const char* recipe, MemoryKind kind) {
    return run_of(comparison, recipe).memory->largest[static_cast<std::size_t>(kind)];
  };
  constexpr std::uint64_t kParameters = 64 * 32 + 32 + 32 * 10 + 10;
  EXPECT_EQ(bytes("fp32", MemoryKind::kParameters), 4 * kParameters);
  EXPECT_EQ(bytes("fp32", MemoryKind::kGradients), 4 * kParameters);
  EXPECT_EQ(bytes("fp32", MemoryKind::kOptimizerState), 8 * kParameters) << "two moments of Adam";
  EXPECT_EQ(bytes("fp32", MemoryKind::kMasters), 0U);
  EXPECT_EQ(bytes("fp32", MemoryKind::kWeightCasts), 0U);
  EXPECT_EQ(bytes("torch-amp-fp16", MemoryKind::kParameters), 4 * kParameters);
  EXPECT_EQ(bytes("torch-amp-fp16", MemoryKind::kWeightCasts), 2 * kParameters);
  EXPECT_LT(bytes("torch-amp-fp16", MemoryKind::kActivations), bytes("fp32", MemoryKind::kActivations));
  EXPECT_EQ(bytes("apex-o2", MemoryKind::kParameters), 2 * kParameters);
  EXPECT_EQ(bytes("apex-o2", MemoryKind::kMasters), 4 * kParameters);
  EXPECT_EQ(bytes("lightning-16-true", MemoryKind::kParameters), 2 * kParameters);
  EXPECT_EQ(bytes("lightning-16-true", MemoryKind::kGradients), 2 * kParameters);
  for (const PrecisionRun& run : comparison.runs) {
    if (!run.memory) continue;
    std::uint64_t sum = 0;
    for (const std::uint64_t part : run.memory->at_peak) sum += part;
    EXPECT_EQ(sum, run.memory->peak) << run.recipe;
  }
}

TEST(ComparePrecision, measures_other_batch_sizes_in_every_recipe) {
  PrecisionOptions options = options_with({"fp16"});
  options.batch_sizes = {8, 64};
  options.probes = 0;
  options.steps = 5;
  const PrecisionComparison comparison = compare_precision(planted_workload(Planted::kNothing), options);
  ASSERT_EQ(comparison.sweep.size(), 4U);
  EXPECT_EQ(comparison.sweep[1].batch_size, 8);
  EXPECT_EQ(comparison.sweep[1].recipe, "torch-amp-fp16");
  for (const BatchSizeRow& row : comparison.sweep) {
    ASSERT_TRUE(row.memory);
    EXPECT_EQ(row.time.steps, options.sweep_steps);
    EXPECT_LE(row.time.low, row.time.median);
    EXPECT_LE(row.time.median, row.time.high);
  }
  const auto activations = static_cast<std::size_t>(MemoryKind::kActivations);
  EXPECT_GT(comparison.sweep[2].memory->largest[activations], 6 * comparison.sweep[0].memory->largest[activations]);
}

TEST(ComparePrecision, gives_the_same_numbers_at_every_call) {
  const Workload workload = planted_workload(Planted::kOverflow);
  PrecisionOptions options = options_with({"fp16"});
  const PrecisionComparison first = compare_precision(workload, options);
  options.seconds = made_up_clock();
  const PrecisionComparison second = compare_precision(workload, options);
  ASSERT_EQ(first.runs.size(), second.runs.size());
  for (std::size_t i = 0; i < first.runs.size(); ++i) {
    const PrecisionRun &a = first.runs[i], &b = second.runs[i];
    EXPECT_EQ(a.time.median, b.time.median) << "by the made-up clock";
    EXPECT_EQ(a.keep, b.keep);
    EXPECT_EQ(a.memory->peak, b.memory->peak);
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      EXPECT_EQ(a.layers[l].layer, b.layers[l].layer);
      EXPECT_EQ(a.layers[l].output_error, b.layers[l].output_error);
    }
    for (std::size_t s = 0; s < a.steps.size(); ++s) {
      EXPECT_TRUE(a.steps[s].loss == b.steps[s].loss || (std::isnan(a.steps[s].loss) && std::isnan(b.steps[s].loss)));
    }
  }
}

TEST(ComparePrecision, says_what_a_recipe_refuses_and_goes_on_with_the_others) {
  Workload workload = planted_workload(Planted::kNothing);
  workload.make = [make = workload.make](std::uint64_t seed, std::int64_t batch_size) {
    TrainingParts parts = make(seed, batch_size);
    // a model that writes fp32 whatever it was converted to
    parts.loss = [](const Tensor& logits, const Batch& batch) {
      if (logits.dtype() == DType::kF16) throw std::invalid_argument("[loss] expected fp32, got fp16");
      return cross_entropy(logits, batch.targets);
    };
    return parts;
  };
  const PrecisionComparison comparison = compare_precision(workload, options_with({"fp16", "O2"}));
  const PrecisionRun& refused = run_of(comparison, "torch-amp-fp16");
  EXPECT_EQ(refused.outcome, PrecisionOutcome::kRefused);
  EXPECT_EQ(refused.why, "[loss] expected fp32, got fp16");
  EXPECT_FALSE(refused.memory);
  EXPECT_EQ(run_of(comparison, "apex-o2").outcome, PrecisionOutcome::kSame);
}

TEST(ComparePrecision, holds_a_recipe_to_its_validation_too_and_names_the_layer_that_fails_there) {
  // given: a layer that fp16 can hold on the images of training, and not on those of the validation
  Workload workload = planted_workload(Planted::kNothing);
  workload.make = [](std::uint64_t seed, std::int64_t batch_size) {
    TrainingParts parts = planted_workload(Planted::kFewBits).make(seed, batch_size);
    parts.setup.options.validation->batches = [](std::uint32_t) {
      Batch batch = make_digits_batch(digits_test_ids().first(60), DType::kF32);
      batch.inputs = mul(batch.inputs, 30);
      return batch;
    };
    return parts;
  };
  // when
  const PrecisionComparison comparison = compare_precision(workload, options_with({"fp16", "bf16"}));
  // then
  const PrecisionRun& fp16 = run_of(comparison, "torch-amp-fp16");
  EXPECT_EQ(fp16.outcome, PrecisionOutcome::kBadValidation);
  EXPECT_TRUE(std::isnan(fp16.validation->loss));
  EXPECT_TRUE(std::isfinite(fp16.validation_in_fp32->loss));
  EXPECT_EQ(fp16.nonfinite, 0U);
  EXPECT_THAT(fp16.keep, ElementsAre(kPlantedLayer));
  EXPECT_EQ(run_of(comparison, "torch-amp-bf16").outcome, PrecisionOutcome::kSame);
}

TEST(ComparePrecision, with_nothing_to_compare_with_says_so) {
  Workload workload = planted_workload(Planted::kNothing);
  workload.make = [make = workload.make](std::uint64_t seed, std::int64_t batch_size) {
    TrainingParts parts = make(seed, batch_size);
    parts.loss = [](const Tensor& logits, const Batch& batch) {
      return mul(cross_entropy(logits, batch.targets), std::nan(""));
    };
    return parts;
  };
  const PrecisionComparison comparison = compare_precision(workload, options_with({"bf16"}));
  for (const PrecisionRun& run : comparison.runs) EXPECT_EQ(run.outcome, PrecisionOutcome::kNoReference);
}

TEST(ComparePrecision, where_the_optimizer_is_what_fails_names_no_layer_but_masters) {
  // given: Adam's eps rounds to 0 in fp16, so the first update of weights without gradient is 0/0
  const PrecisionComparison comparison =
      compare_precision(planted_workload(Planted::kNothing), options_with({"16-true"}));
  const PrecisionRun& run = run_of(comparison, "lightning-16-true");
  EXPECT_EQ(run.outcome, PrecisionOutcome::kNonFinite);
  // then: weights and state in fp32 cure it, while all layers go on computing in fp16
  EXPECT_TRUE(run.keep_masters);
  EXPECT_THAT(run.keep, IsEmpty());
  ASSERT_EQ(run.trials.size(), 3U) << "as it is from another seed, the cure, and the cure from there";
  EXPECT_TRUE(!run.trials[0].masters && !run.trials[0].restored);
  EXPECT_TRUE(run.trials[1].masters && run.trials[1].restored && !run.trials[1].other_seed);
  EXPECT_TRUE(run.trials[2].masters && run.trials[2].restored && run.trials[2].other_seed);
}

TEST(ComparePrecision, where_a_scaler_took_long_to_find_its_scale_names_the_scale_and_no_layer) {
  // given: a summed loss, for which the scale has to be halved several times, on a run that is short
  Workload workload = planted_workload(Planted::kNothing);
  workload.steps = 30;
  workload.make = [make = workload.make](std::uint64_t seed, std::int64_t batch_size) {
    TrainingParts parts = make(seed, batch_size);
    parts.loss = [](const Tensor& logits, const Batch& batch) { return mul(cross_entropy(logits, batch.targets), 64); };
    return parts;
  };
  const PrecisionComparison comparison = compare_precision(workload, options_with({"fp16"}));
  const PrecisionRun& run = comparison.runs.back();
  EXPECT_EQ(run.outcome, PrecisionOutcome::kWorse);
  EXPECT_GT(run.skipped, 3U);
  EXPECT_THAT(run.keep, IsEmpty());
  ASSERT_TRUE(run.start_scale);
  EXPECT_EQ(*run.start_scale, run.steps.back().scale);
  for (std::size_t i = 1; i < run.trials.size(); ++i) {
    EXPECT_TRUE(run.trials[i].restored && run.trials[i].start_scale && run.trials[i].layers.empty());
  }
}

TEST(ComparePrecision, where_a_layer_and_the_optimizer_fail_names_both_and_neither_in_vain) {
  const auto keep_in = [](Planted planted, const char* recipe, const char* algorithm) {
    Workload workload = planted_workload(planted);
    workload.make = [make = workload.make, algorithm](std::uint64_t seed, std::int64_t batch_size) {
      TrainingParts parts = make(seed, batch_size);
      parts.setup.optimizer.algorithm = algorithm;
      if (parts.setup.optimizer.algorithm == "sgd") parts.setup.optimizer.lr = 0.1;
      return parts;
    };
    const PrecisionComparison comparison = compare_precision(workload, options_with({recipe}));
    const PrecisionRun& run = comparison.runs.back();
    return std::pair(run.keep, run.keep_masters);
  };
  const std::vector<std::string> layer = {kPlantedLayer};
  EXPECT_EQ(keep_in(Planted::kOverflow, "16-true", "adam"), std::pair(layer, true));
  EXPECT_EQ(keep_in(Planted::kOverflow, "16-true", "sgd"), std::pair(layer, false));
  EXPECT_EQ(keep_in(Planted::kNothing, "16-true", "sgd"), std::pair(std::vector<std::string>(), false));
}

}  // namespace
}  // namespace nanhunt::engine::testing
