// SPDX-License-Identifier: Apache-2.0
#include "src/engine/precision/recipe_run.h"

#include <stdexcept>
#include <utility>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"

namespace nanhunt::engine {
namespace {

void copy_into(std::vector<NamedTensor> tensors, const std::vector<Tensor>& copies) {
  for (std::size_t i = 0; i < tensors.size() && i < copies.size(); ++i) tensors[i].tensor.copy_from(copies[i]);
}

void put_back(Module& model, const StartingPoint& from) {
  copy_into(model.named_parameters(), from.parameters);
  copy_into(model.named_buffers(), from.buffers);
  const std::vector<RandomStream*> streams = model.random_streams();
  for (std::size_t i = 0; i < streams.size() && i < from.random_positions.size(); ++i) {
    streams[i]->seek(from.random_positions[i]);
  }
}

void keep_layers(Module& model, const RecipePlan& plan) {
  for (Module* module : model.modules()) {
    const bool is_root = module == &model;
    if (is_root ? plan.keep_all : plan.kept.contains(module->path())) module->keep_fp32();
    const auto format = plan.input_formats.find(module->path());
    if (!is_root && format != plan.input_formats.end()) module->set_call_casts(format->second, {});
  }
}

BatchSource from_step(BatchSource batches, std::uint32_t first) {
  if (first == 0) return batches;
  return [batches = std::move(batches), first](std::uint32_t number) { return batches(first + number); };
}

}  // namespace

StartingPoint copy_point(Trainer& trainer) {
  StartingPoint point;
  point.step = trainer.next_step();
  for (const NamedTensor& entry : trainer.model().named_parameters()) point.parameters.push_back(entry.tensor.clone());
  for (const NamedTensor& entry : trainer.model().named_buffers()) point.buffers.push_back(entry.tensor.clone());
  for (const RandomStream* stream : trainer.model().random_streams()) {
    point.random_positions.push_back(stream->position());
  }
  return point;
}

std::optional<double> AnswerCount::Seen::share() {
  const Seen seen = std::exchange(*this, {});
  if (seen.all == 0) return std::nullopt;
  return static_cast<double>(seen.right) / static_cast<double>(seen.all);
}

// Classes are int64 of one number for each row of the output's last dimension; negative ones do not count.
void AnswerCount::count(const Tensor& output, const Tensor& targets, Seen& seen) {
  if (!output.defined() || !targets.defined() || targets.dtype() != DType::kI64 || output.dim() < 2) return;
  const std::int64_t classes = output.size(-1);
  if (classes < 2 || output.numel() != targets.numel() * classes) return;
  const std::vector<double> scores = output.to_vector();
  const std::vector<std::int64_t> wanted = targets.to_indices();
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    if (wanted[row] < 0) continue;
    const double* first = scores.data() + row * static_cast<std::size_t>(classes);
    std::int64_t best = 0;
    bool any_nan = false;
    for (std::int64_t c = 0; c < classes; ++c) {
      any_nan = any_nan || first[c] != first[c];
      if (first[c] > first[best]) best = c;
    }
    ++seen.all;
    if (!any_nan && best == wanted[row]) ++seen.right;
  }
}

LossFunction AnswerCount::around(LossFunction loss) {
  return [this, loss = std::move(loss)](const Tensor& output, const Batch& batch) {
    if (current_phase() == Phase::kValidation) {
      count(output, batch.targets, validation_);
    } else if (keeps_) {
      kept_.emplace_back(output.detach(), batch.targets);
    }
    return loss(output, batch);
  };
}

std::optional<double> AnswerCount::take_training() {
  for (const auto& [output, targets] : kept_) count(output, targets, training_);
  kept_.clear();
  return training_.share();
}

std::optional<double> AnswerCount::take_validation() { return validation_.share(); }

std::unique_ptr<Trainer> make_in_recipe(const RecipePlan& plan, const StartingPoint* from, AnswerCount* answers) {
  TrainingParts parts = plan.workload->make(plan.seed, plan.batch_size);
  if (from != nullptr) put_back(*parts.setup.model, *from);
  keep_layers(*parts.setup.model, plan);
  parts.setup = apply_recipe(*plan.recipe, std::move(parts.setup));
  if (plan.masters) parts.setup.optimizer.fp32_masters = true;
  TrainerOptions& options = parts.setup.options;
  if (options.validation && plan.steps != 0) {
    options.validation->every = plan.steps;
  } else {
    options.validation.reset();
  }
  if (from != nullptr) parts.batches = from_step(std::move(parts.batches), from->step * options.micro_batches);
  if (answers != nullptr) parts.loss = answers->around(std::move(parts.loss));
  auto trainer = make_trainer(std::move(parts));
  if (trainer->scaler() != nullptr) {
    const LossScaler::Saved& saved = from != nullptr && !from->scaler.empty() ? from->scaler : plan.scaler;
    if (!saved.empty()) trainer->scaler()->load(saved);
  }
  return trainer;
}

ValidationResult validate_in_fp32(const RecipePlan& plan, const StartingPoint& weights) {
  TrainingParts parts = plan.workload->make(plan.seed, plan.batch_size);
  put_back(*parts.setup.model, weights);
  const ValidationOptions& validation = *parts.setup.options.validation;
  AnswerCount answers;
  const LossFunction loss = answers.around(parts.loss);
  const NoGradGuard no_grad;
  const ScopedPhase phase(Phase::kValidation);
  parts.setup.model->train(false);
  double sum = 0;
  for (std::uint32_t number = 0; number < validation.count; ++number) {
    const Batch batch = validation.batches(number);
    const Tensor output = (*parts.setup.model)(batch.inputs);
    sum += loss(output, batch).item();
  }
  return {sum / validation.count, answers.take_validation()};
}

Course train_course(const RecipePlan& plan) {
  Course course;
  try {
    const auto trainer = make_in_recipe(plan);
    for (std::uint32_t i = 0; i < plan.steps && course.ended_by.empty(); ++i) {
      const StepResult result = trainer->step();
      course.steps.push_back({result.step, result.loss, result.skipped, result.scale});
      course.ended_by = result.ended_by;
      if (result.validation_loss) course.validation_loss = result.validation_loss;
    }
  } catch (const std::invalid_argument& refused) {
    course.refused = refused.what();
  }
  return course;
}

}  // namespace nanhunt::engine
