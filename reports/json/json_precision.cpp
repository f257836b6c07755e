// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_precision.h"

#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

json bytes_to_json(const MemoryBytes& bytes) {
  json out = json::object();
  for (std::size_t k = 0; k < kMemoryKinds; ++k) {
    out[std::string(memory_kind_name(static_cast<MemoryKind>(k)))] = json_count(bytes[k]);
  }
  return out;
}

json memory_to_json(const std::optional<StepMemory>& memory) {
  if (!memory) return nullptr;
  return {{"peak", json_count(memory->peak)},
          {"at_peak", bytes_to_json(memory->at_peak)},
          {"largest", bytes_to_json(memory->largest)},
          {"scratch", json_count(memory->scratch)}};
}

json times_to_json(const StepTimes& times) {
  const bool none = times.steps == 0;
  return {{"step_time",
           {{"steps", times.steps},
            {"median", none ? json() : json_number(times.median)},
            {"low", none ? json() : json_number(times.low)},
            {"high", none ? json() : json_number(times.high)}}}};
}

json share_to_json(const std::optional<double>& share) { return share ? json_number(*share) : json(); }

json validation_to_json(const std::optional<ValidationResult>& result) {
  if (!result) return nullptr;
  return {{"loss", json_number(result->loss)}, {"accuracy", share_to_json(result->accuracy)}};
}

json loss_step_to_json(const PrecisionStep& step) {
  return {{"step", step.step},
          {"loss", json_number(step.loss)},
          {"skipped", step.skipped},
          {"scale", json_number(step.scale)}};
}

json layer_error_to_json(const LayerPrecision& layer) {
  return {{"layer", json_text(layer.layer)},
          {"output_error", json_number(layer.output_error)},
          {"gradient_error", json_number_or_null(layer.gradient_error)},
          {"elements", json_count(layer.elements)},
          {"overflowed", json_count(layer.overflowed)},
          {"flushed", json_count(layer.flushed)},
          {"first_overflow", layer.first_overflow ? json(*layer.first_overflow) : json()},
          {"alone_error", json_number_or_null(layer.alone_error)},
          {"kept_error", json_number_or_null(layer.kept_error)}};
}

json trial_to_json(const KeptTrial& trial) {
  return {{"layers", json_texts(trial.layers)},
          {"all_layers", trial.all_layers},
          {"masters", trial.masters},
          {"other_seed", trial.other_seed},
          {"start_scale", trial.start_scale ? json_number(*trial.start_scale) : json()},
          {"final_loss", json_number(trial.final_loss)},
          {"validation_loss", trial.validation_loss ? json_number(*trial.validation_loss) : json()},
          {"nonfinite_steps", trial.nonfinite},
          {"skipped_steps", trial.skipped},
          {"restored", trial.restored},
          {"refused", json_text_or_null(trial.refused)}};
}

template <typename T, typename F>
json list_of(const std::vector<T>& items, const F& to_json) {
  json out = json::array();
  for (const T& item : items) out.push_back(to_json(item));
  return out;
}

json recipe_run_to_json(const PrecisionRun& run) {
  return {{"recipe", json_text(run.recipe)},
          {"summary", json_text(run.summary)},
          {"dtype", json_text(run.dtype)},
          {"outcome", precision_outcome_name(run.outcome)},
          {"why", json_text_or_null(run.why)},
          {"steps", list_of(run.steps, loss_step_to_json)},
          {"final_loss", run.steps.empty() ? json() : json_number(run.final_loss)},
          {"accuracy", share_to_json(run.accuracy)},
          {"nonfinite_steps", run.nonfinite},
          {"skipped_steps", run.skipped},
          {"validation", validation_to_json(run.validation)},
          {"validation_in_fp32", validation_to_json(run.validation_in_fp32)},
          {"memory", memory_to_json(run.memory)},
          {"probed_steps", run.probed},
          {"layers", list_of(run.layers, layer_error_to_json)},
          {"layers_unmeasured", run.layers_unmeasured},
          {"trials", list_of(run.trials, trial_to_json)},
          {"keep", json_texts(run.keep)},
          {"keep_masters", run.keep_masters},
          {"start_scale", run.start_scale ? json_number(*run.start_scale) : json()},
          {"volatile", times_to_json(run.time)}};
}

json batch_to_json(const BatchSizeRow& row) {
  return {{"batch_size", row.batch_size},
          {"recipe", json_text(row.recipe)},
          {"why", json_text_or_null(row.why)},
          {"memory", memory_to_json(row.memory)},
          {"volatile", times_to_json(row.time)}};
}

}  // namespace

std::string render_precision_json(const PrecisionComparison& c) {
  const json answer = {
      {"schema", "nanhunt.precision"},
      {"schema_version", 1},
      {"workload", json_text(c.workload)},
      {"summary", json_text(c.summary)},
      {"seed", json_count(c.seed)},
      {"steps", c.steps},
      {"batch_size", c.batch_size},
      {"tolerance", json_number(c.tolerance)},
      {"allowed_loss", json_number(c.allowed_loss)},
      {"other_seed_loss", c.other_seed_loss ? json_number(*c.other_seed_loss) : json()},
      {"allowed_validation_loss", c.allowed_validation_loss ? json_number(*c.allowed_validation_loss) : json()},
      {"runs", list_of(c.runs, recipe_run_to_json)},
      {"batch_sizes", list_of(c.sweep, batch_to_json)}};
  return dump_json(answer) + "\n";
}

}  // namespace nanhunt::reports
