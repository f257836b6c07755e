// SPDX-License-Identifier: Apache-2.0
// What the scenarios share: putting a trainer together, and a data set in which one sample is odd.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::scenarios {

inline constexpr std::int64_t kBatchSize = 64;  // 22 steps an epoch
inline constexpr std::uint32_t kSteps = 40;

// The format of a model and its batches: fp32 where a recipe is to be chosen.
DType own_format(const ScenarioConfig& config, DType own);
// What `own` makes of the setup, unless a recipe is to be chosen.
engine::TrainingSetup in_own_recipe(const ScenarioConfig& config, engine::TrainingSetup setup,
                                    const std::function<engine::TrainingSetup(engine::TrainingSetup)>& own);

// Renames the model if asked, then makes optimizer and trainer.
ScenarioRun assemble(std::unique_ptr<engine::Module> model, const engine::OptimizerOptions& optimizer,
                     engine::BatchSource batches, engine::LossFunction loss, const ScenarioConfig& config,
                     const engine::TrainerOptions& options = {});
// Of what a recipe has made.
ScenarioRun assemble(engine::TrainingSetup setup, engine::BatchSource batches, engine::LossFunction loss,
                     const ScenarioConfig& config);

// To train as rank `rank` while the others train along in this process.
ScenarioConfig with_others(const std::function<ScenarioRun(const ScenarioConfig&)>& make, ScenarioConfig config,
                           std::uint32_t rank, std::uint32_t ranks);

// Throws unless `config.fix` is empty or one of `fixes`.
void expect_known_fix(const std::vector<hunt::Fix>& fixes, const std::string& fix);

// The scenario and its twin NAME-fixed, which is the scenario with its first fix and expects silence.
// `twin_dtypes`: formats the twin trains with.
std::vector<Scenario> with_twin(Scenario scenario, std::vector<std::string> twin_dtypes);

// Training order of the digits, the same for every scenario of a seed. The sample in the middle of the batch of
// `step`; below 22 that is the first time it is met.
engine::BatchOrder training_order(std::uint64_t seed, std::int64_t batch_size = kBatchSize);
std::int64_t sample_first_met_at(const engine::BatchOrder& order, std::uint32_t step);

// Multiplies or sets the pixels of one sample wherever it stands in the batch. Inputs must be contiguous.
void scale_sample(engine::Batch& batch, std::int64_t id, double factor);
void set_pixel(engine::Batch& batch, std::int64_t id, std::int64_t pixel, double value);

// Batches of the digits in training order, in which one sample's pixels are multiplied by `factor`.
engine::BatchSource digits_with_odd_sample(engine::BatchOrder order, std::int64_t id, double factor, DType dtype);

// Digits -> "fc1" (64) -> `middle` under its own name -> "fc2" -> classes.
std::unique_ptr<engine::Module> digits_model_around(std::string name, std::unique_ptr<engine::Module> middle,
                                                    std::uint64_t seed, DType dtype);

// Root mean square norm, computed in fp32 and handed on as `dtype`, as large language models have it.
std::unique_ptr<engine::Module> make_fp32_rms_norm(DType dtype);

// A product without bias, its weights as large as trained ones can be (standard deviation 32). `in_fp32`: outside
// autocast.
std::unique_ptr<engine::Module> make_large_projection(std::int64_t in, std::int64_t out, engine::RandomStream& random,
                                                      bool in_fp32);

// Mean cross entropy of class numbers, in fp32 as autocast does.
engine::Tensor classification_loss(const engine::Tensor& logits, const engine::Batch& batch);

}  // namespace nanhunt::scenarios
