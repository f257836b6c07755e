// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/memory_use.h"
#include "nanhunt/engine/precision.h"
#include "src/engine/ops/op.h"
#include "src/engine/precision/layer_search.h"

namespace nanhunt::engine {
namespace {

constexpr std::uint32_t kWarmUpSteps = 2;  // of a sweep

double machine_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StepTimes summarise(std::vector<double> seconds) {
  StepTimes times;
  times.steps = static_cast<std::uint32_t>(seconds.size());
  if (seconds.empty()) return times;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1) + 0.5)];
  };
  times.median = at(0.5);
  times.low = at(0.1);
  times.high = at(0.9);
  return times;
}

// A run in a recipe while all of them train in turn.
struct Running {
  RecipePlan plan;
  PrecisionRun* run = nullptr;
  AnswerCount answers;
  std::unique_ptr<Trainer> trainer;
  Course course;
  std::vector<double> seconds;
  std::vector<LossScaler::Saved> scalers;    // as each step began with it
  std::vector<std::optional<double>> right;  // answers of each step
  std::optional<ValidationResult> validation;
  bool going() const { return trainer != nullptr && course.ended_by.empty() && course.refused.empty(); }
};

class Comparison {
 public:
  Comparison(const Workload& workload, const PrecisionOptions& options)
      : workload_(workload), options_(options), seconds_(options.seconds ? options.seconds : machine_seconds) {
    out_.workload = workload.name;
    out_.summary = workload.summary;
    out_.seed = options.seed;
    out_.steps = options.steps != 0 ? options.steps : workload.steps;
    out_.batch_size = options.batch_size != 0 ? options.batch_size : workload.batch_size;
    out_.tolerance = options.tolerance;
    recipes_ = {find_recipe("fp32")};
    for (const NamedRecipe* recipe : options.recipes) {
      if (std::find(recipes_.begin(), recipes_.end(), recipe) == recipes_.end()) recipes_.push_back(recipe);
    }
  }

  PrecisionComparison compare() {
    train_all();
    if (std::isfinite(out_.runs.front().final_loss)) compare_layers();
    for (const std::int64_t size : options_.batch_sizes) measure_batch_size(size);
    return std::move(out_);
  }

 private:
  void tell(const std::string& what, std::uint32_t done, std::uint32_t of) const {
    if (options_.progress) options_.progress(what, done, of);
  }

  RecipePlan plan_of(const NamedRecipe& recipe, std::int64_t batch_size, std::uint32_t steps) const {
    RecipePlan plan;
    plan.workload = &workload_;
    plan.recipe = &recipe;
    plan.seed = options_.seed;
    plan.batch_size = batch_size;
    plan.steps = steps;
    return plan;
  }

  // What a recipe refuses ends its run; what fp32 throws is a mistake of the workload.
  template <typename F>
  static void run_or_refuse(Running& running, const F& work) {
    try {
      work();
    } catch (const std::invalid_argument& refused) {
      if (running.plan.recipe->name == "fp32") throw;
      running.course.refused = refused.what();
    }
  }

  void take_step(Running& running, std::uint32_t step) {
    run_or_refuse(running, [&] {
      Trainer& trainer = *running.trainer;
      running.scalers.push_back(trainer.scaler() != nullptr ? trainer.scaler()->saved() : LossScaler::Saved());
      const double before = seconds_();
      const StepResult result = trainer.step();
      const double after = seconds_();
      const bool is_warm = step >= std::max(1U, out_.steps / 10);
      if (is_warm && !result.validation_loss) running.seconds.push_back(after - before);
      running.course.steps.push_back({result.step, result.loss, result.skipped, result.scale});
      running.course.ended_by = result.ended_by;
      running.right.push_back(running.answers.take_training());
      if (result.validation_loss) {
        running.course.validation_loss = result.validation_loss;
        running.validation = ValidationResult{*result.validation_loss, running.answers.take_validation()};
      }
    });
  }

  void train_all() {
    for (const NamedRecipe* recipe : recipes_) {
      PrecisionRun& run = out_.runs.emplace_back();
      run.recipe = recipe->name;
      run.summary = recipe->summary;
      run.dtype = dtype_name(recipe->dtype);
    }
    std::vector<Running> all(recipes_.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].plan = plan_of(*recipes_[i], out_.batch_size, out_.steps);
      all[i].run = &out_.runs[i];
      run_or_refuse(all[i], [&] { all[i].trainer = make_in_recipe(all[i].plan, nullptr, &all[i].answers); });
    }
    for (std::uint32_t step = 0; step < out_.steps; ++step) {
      for (Running& running : all) {
        if (running.going()) take_step(running, step);
      }
      tell("training", step + 1, out_.steps);
    }
    const Course& course = all.front().course;
    const Course other = train_from_another_seed();
    reference_ = make_reference(course, options_.tolerance, other);
    other_seed_ = make_reference(other, options_.tolerance, course);
    out_.allowed_loss = reference_.allowed_loss;
    out_.allowed_validation_loss = reference_.allowed_validation_loss;
    for (Running& running : all) finish(running);
  }

  // fp32 once more: what another seed makes of the loss is chance, in a recipe as well.
  Course train_from_another_seed() {
    if (out_.runs.size() < 2) return {};
    tell("training fp32 from another seed", 0, 1);
    RecipePlan plan = plan_of(*recipes_.front(), out_.batch_size, out_.steps);
    ++plan.seed;
    Course course = train_course(plan);
    out_.other_seed_loss = final_loss_of(course.steps);
    tell("training fp32 from another seed", 1, 1);
    return course;
  }

  void finish(Running& running) {
    PrecisionRun& run = *running.run;
    const Judged judged = judge(running.course, reference_);
    run.outcome = judged.outcome;
    run.final_loss = judged.final_loss;
    run.nonfinite = judged.nonfinite;
    run.skipped = judged.skipped;
    run.why = !running.course.refused.empty() ? running.course.refused : running.course.ended_by;
    run.time = summarise(running.seconds);
    run.validation = running.validation;
    double right = 0;
    const std::size_t counted = std::max<std::size_t>(1, running.right.size() / 5);
    for (std::size_t i = running.right.size() - std::min(counted, running.right.size()); i < running.right.size();
         ++i) {
      if (running.right[i]) run.accuracy = (right += *running.right[i]) / static_cast<double>(counted);
    }
    if (running.trainer != nullptr && running.course.refused.empty()) {
      StartingPoint weights = copy_point(*running.trainer);
      if (run.validation) run.validation_in_fp32 = validate_in_fp32(running.plan, weights);
      running.answers.keep(false);
      if (running.going()) run.memory = measure_step_memory(*running.trainer);
      if (run.outcome == PrecisionOutcome::kBadValidation) {
        weights.step = out_.steps - 1;
        final_weights_[static_cast<std::size_t>(running.run - out_.runs.data())] = std::move(weights);
      }
    }
    running.trainer.reset();
    run.steps = std::move(running.course.steps);
    scalers_.push_back(std::move(running.scalers));
  }

  // Evenly spread over the course, the last step among them, and where each recipe first lost a step.
  std::set<std::uint32_t> probe_steps() const {
    std::set<std::uint32_t> steps;
    for (std::uint32_t i = 1; i <= options_.probes; ++i) {
      steps.insert(static_cast<std::uint32_t>(std::uint64_t{i} * (out_.steps - 1) / options_.probes));
    }
    for (std::size_t i = 1; i < out_.runs.size(); ++i) {
      if (const auto lost = first_lost_step(out_.runs[i])) steps.insert(*lost);
    }
    return steps;
  }

  std::optional<std::uint32_t> first_lost_step(const PrecisionRun& run) const {
    const auto& fp32 = out_.runs.front().steps;
    for (std::size_t i = 0; i < run.steps.size() && i < fp32.size(); ++i) {
      if (!std::isfinite(run.steps[i].loss) && std::isfinite(fp32[i].loss)) return run.steps[i].step;
    }
    return std::nullopt;
  }

  // fp32's course once more, for the same bits, with what each probe begins with.
  std::map<std::uint32_t, StartingPoint> points_of_fp32() const {
    std::map<std::uint32_t, StartingPoint> points;
    const std::set<std::uint32_t> steps = probe_steps();
    RecipePlan plan = plan_of(*recipes_.front(), out_.batch_size, 0);
    const auto trainer = make_in_recipe(plan);
    for (const std::uint32_t step : steps) {
      while (trainer->next_step() < step) trainer->step();
      points.emplace(step, copy_point(*trainer));
    }
    return points;
  }

  StartingPoint with_scaler(const StartingPoint& point, std::size_t run) const {
    StartingPoint start = point;
    if (point.step < scalers_[run].size()) start.scaler = scalers_[run][point.step];
    return start;
  }

  void compare_layers() {
    if (out_.runs.size() < 2 || options_.probes == 0) return;
    const std::map<std::uint32_t, StartingPoint> points = points_of_fp32();
    const RecipePlan fp32_plan = plan_of(*recipes_.front(), out_.batch_size, 0);
    std::uint32_t done = 0;
    for (const auto& [step, point] : points) {
      const Probe fp32 = probe_step(fp32_plan, point, /*with_ops=*/true);
      for (std::size_t i = 1; i < out_.runs.size(); ++i) {
        PrecisionRun& run = out_.runs[i];
        if (run.outcome == PrecisionOutcome::kRefused) continue;
        const Probe probe =
            probe_step(plan_of(*recipes_[i], out_.batch_size, 0), with_scaler(point, i), /*with_ops=*/true);
        add_errors(fp32, probe, step, run.layers);
        formats_[i] = probe.input_formats;
        run.probed.push_back(step);
      }
      tell("comparing layers", ++done, static_cast<std::uint32_t>(points.size()));
    }
    for (std::size_t i = 1; i < out_.runs.size(); ++i) {
      PrecisionRun& run = out_.runs[i];
      if (run.layers.empty()) continue;
      const StartingPoint& point = points.at(first_lost_step(run).value_or(points.rbegin()->first));
      const Probe fp32 = probe_step(fp32_plan, point, /*with_ops=*/false);
      run.layers_unmeasured = measure_layers(
          plan_of(*recipes_[i], out_.batch_size, 0), with_scaler(point, i), fp32, formats_[i], run.layers,
          [&](std::uint32_t at, std::uint32_t of) { tell("one layer at a time in " + run.recipe, at, of); });
      if (run.outcome == PrecisionOutcome::kSame || !reference_.has_learnt) continue;
      if (run.outcome == PrecisionOutcome::kBadValidation) compare_validation(i);
      search_layers(
          plan_of(*recipes_[i], out_.batch_size, out_.steps), reference_, other_seed_,
          scalers_[i].empty() ? LossScaler::Saved() : scalers_[i].back(), run,
          [&](std::uint32_t at, std::uint32_t of) { tell("keeping layers in fp32 in " + run.recipe, at, of); });
    }
  }

  // With the weights that the recipe came to; what overflows there is looked at first.
  void compare_validation(std::size_t i) {
    PrecisionRun& run = out_.runs[i];
    const StartingPoint& weights = final_weights_.at(i);
    const auto plan = [&](std::size_t recipe) { return plan_of(*recipes_[recipe], out_.batch_size, 0); };
    add_errors(probe_validation(plan(0), weights), probe_validation(plan(i), weights), weights.step, run.layers);
    std::stable_sort(run.layers.begin(), run.layers.end(), [](const LayerPrecision& a, const LayerPrecision& b) {
      return (a.overflowed > 0) && b.overflowed == 0;
    });
  }

  void measure_batch_size(std::int64_t size) {
    std::vector<Running> all(recipes_.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].plan = plan_of(*recipes_[i], size, 0);
      run_or_refuse(all[i], [&] { all[i].trainer = make_in_recipe(all[i].plan); });
    }
    for (std::uint32_t step = 0; step < kWarmUpSteps + options_.sweep_steps; ++step) {
      for (Running& running : all) {
        if (!running.going()) continue;
        run_or_refuse(running, [&] {
          const double before = seconds_();
          const StepResult result = running.trainer->step();
          const double after = seconds_();
          if (step >= kWarmUpSteps) running.seconds.push_back(after - before);
          running.course.ended_by = result.ended_by;
        });
      }
      tell("batch size " + std::to_string(size), step + 1, kWarmUpSteps + options_.sweep_steps);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      BatchSizeRow row;
      row.batch_size = size;
      row.recipe = recipes_[i]->name;
      row.time = summarise(all[i].seconds);
      row.why = !all[i].course.refused.empty() ? all[i].course.refused : all[i].course.ended_by;
      if (all[i].going()) row.memory = measure_step_memory(*all[i].trainer);
      out_.sweep.push_back(std::move(row));
    }
  }

  const Workload& workload_;
  const PrecisionOptions& options_;
  std::function<double()> seconds_;
  std::vector<const NamedRecipe*> recipes_;
  Reference reference_, other_seed_;  // fp32, and fp32 from the seed that follows
  std::vector<std::vector<LossScaler::Saved>> scalers_;          // by run
  std::map<std::size_t, StartingPoint> final_weights_;           // by run, of those whose validation falls short
  std::map<std::size_t, std::map<std::string, DType>> formats_;  // by run: of each layer's input
  PrecisionComparison out_;
};

}  // namespace

PrecisionComparison compare_precision(const Workload& workload, const PrecisionOptions& options) {
  if (!workload.make) fail("compare_precision", "a workload", "none");
  for (const NamedRecipe* recipe : options.recipes) {
    if (recipe == nullptr) fail("compare_precision", "recipes", "a null one");
  }
  return Comparison(workload, options).compare();
}

}  // namespace nanhunt::engine
