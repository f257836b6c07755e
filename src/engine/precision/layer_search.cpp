// SPDX-License-Identifier: Apache-2.0
#include "src/engine/precision/layer_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace nanhunt::engine {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

std::ptrdiff_t depth(const std::string& path) { return std::count(path.begin(), path.end(), '.'); }

// Not where it is kept out of 16 bits for good, or something else refuses it: that is nothing that was measured.
double error_with(const RecipePlan& plan, const StartingPoint& from, const Probe& fp32) {
  try {
    return gradient_error(fp32, probe_step(plan, from, /*with_ops=*/false));
  } catch (const std::invalid_argument&) {
    return kNotMeasured;
  }
}

// Larger first; not measured comes last.
bool is_worse(const LayerPrecision& a, const LayerPrecision& b) {
  if (std::isnan(a.alone_error) != std::isnan(b.alone_error)) return std::isnan(b.alone_error);
  if (!std::isnan(a.alone_error) && a.alone_error != b.alone_error) return a.alone_error > b.alone_error;
  if ((a.overflowed > 0) != (b.overflowed > 0)) return a.overflowed > 0;
  return depth(a.layer) > depth(b.layer);  // the part rather than the whole
}

// What may stand in the way of a recipe besides the formats of its layers.
struct Besides {
  bool masters = false;                 // the optimizer steps weights of 16 bits themselves
  std::vector<std::string> parameters;  // paths
};

Besides besides_layers(const RecipePlan& plan) {
  const auto trainer = make_in_recipe(plan);
  const auto& parameters = trainer->optimizer().parameters();
  Besides out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    out.parameters.push_back(parameters[i].path);
    const bool is_bare = !trainer->optimizer().master(i).defined();
    out.masters = out.masters || (is_bare && dtype_size(parameters[i].tensor.dtype()) == 2);
  }
  return out;
}

// A loss that is only somewhat higher than fp32's may fall below the bound by chance: at least half of what it is
// behind has to be made good.
double loss_that_restores(PrecisionOutcome outcome, double final_loss, const Reference& reference) {
  if (outcome != PrecisionOutcome::kWorse) return reference.allowed_loss;
  return std::min(reference.allowed_loss, (final_loss_of(reference.steps) + final_loss) / 2);
}

KeptTrial run_trial(const RecipePlan& plan, const Reference& reference, double loss_wanted) {
  KeptTrial trial;
  trial.all_layers = plan.keep_all;
  trial.masters = plan.masters;
  trial.layers.assign(plan.kept.begin(), plan.kept.end());
  const Course course = train_course(plan);
  const Judged judged = judge(course, reference);
  trial.final_loss = judged.final_loss;
  trial.validation_loss = course.validation_loss;
  trial.nonfinite = judged.nonfinite;
  trial.skipped = judged.skipped;
  trial.refused = course.refused;
  trial.restored = judged.outcome == PrecisionOutcome::kSame && judged.final_loss <= loss_wanted;
  return trial;
}

}  // namespace

double final_loss_of(const std::vector<PrecisionStep>& steps) {
  if (steps.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t count = std::max<std::size_t>(1, steps.size() / 5);
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

Reference make_reference(const Course& fp32, double tolerance, const Course& other_seed) {
  Reference out;
  out.steps = fp32.steps;
  const double last = final_loss_of(fp32.steps);
  const double learnt = fp32.steps.empty() ? 0 : fp32.steps.front().loss - last;
  const double more = tolerance * std::max(learnt, 0.0);
  out.has_learnt = learnt > 0.01 * std::abs(last + learnt);
  const auto allowed = [&](double loss, double from_other_seed) {
    const double by_seed = std::abs(from_other_seed - loss);
    return loss + (std::isfinite(by_seed) ? std::max(more, by_seed) : more);
  };
  out.allowed_loss = allowed(last, final_loss_of(other_seed.steps));
  if (fp32.validation_loss && std::isfinite(*fp32.validation_loss)) {
    out.allowed_validation_loss = allowed(*fp32.validation_loss, other_seed.validation_loss.value_or(kNotMeasured));
  }
  return out;
}

Judged judge(const Course& course, const Reference& reference) {
  const std::vector<PrecisionStep>& fp32 = reference.steps;
  Judged out;
  out.final_loss = final_loss_of(course.steps);
  for (std::size_t i = 0; i < course.steps.size(); ++i) {
    out.skipped += course.steps[i].skipped ? 1 : 0;
    const bool is_lost = !std::isfinite(course.steps[i].loss) && i < fp32.size() && std::isfinite(fp32[i].loss);
    out.nonfinite += is_lost ? 1 : 0;
  }
  const bool validates_badly = reference.allowed_validation_loss && course.validation_loss &&
                               !(*course.validation_loss <= *reference.allowed_validation_loss);
  out.outcome = !course.refused.empty()                   ? PrecisionOutcome::kRefused
                : !std::isfinite(final_loss_of(fp32))     ? PrecisionOutcome::kNoReference
                : !course.ended_by.empty()                ? PrecisionOutcome::kStopped
                : !std::isfinite(out.final_loss)          ? PrecisionOutcome::kNonFinite
                : !reference.has_learnt                   ? PrecisionOutcome::kNoReference
                : out.final_loss > reference.allowed_loss ? PrecisionOutcome::kWorse
                : validates_badly                         ? PrecisionOutcome::kBadValidation
                : out.nonfinite != 0                      ? PrecisionOutcome::kLostSteps
                                                          : PrecisionOutcome::kSame;
  return out;
}

std::uint32_t measure_layers(const RecipePlan& plan, const StartingPoint& from, const Probe& fp32,
                             const std::map<std::string, DType>& formats, std::vector<LayerPrecision>& layers,
                             const std::function<void(std::uint32_t, std::uint32_t)>& tell) {
  // What overflows or errs most is measured where not all can be.
  std::stable_sort(layers.begin(), layers.end(), [](const LayerPrecision& a, const LayerPrecision& b) {
    if ((a.overflowed > 0) != (b.overflowed > 0)) return a.overflowed > 0;
    return a.output_error > b.output_error;
  });
  const auto measured = static_cast<std::uint32_t>(std::min(layers.size(), kMeasuredLayers));
  for (std::uint32_t i = 0; i < measured; ++i) {
    RecipePlan kept = plan, alone = plan;
    kept.kept = {layers[i].layer};
    for (const LayerPrecision& other : layers) {
      if (is_within(other.layer, layers[i].layer) || is_within(layers[i].layer, other.layer)) continue;
      alone.kept.insert(other.layer);
    }
    // What comes into it has the format that it has where all others are in the recipe's too.
    const auto format = formats.find(layers[i].layer);
    if (format != formats.end()) alone.input_formats.insert(*format);
    layers[i].kept_error = error_with(kept, from, fp32);
    layers[i].alone_error = error_with(alone, from, fp32);
    tell(i + 1, measured);
  }
  std::stable_sort(layers.begin(), layers.end(), is_worse);
  return static_cast<std::uint32_t>(layers.size()) - measured;
}

void search_layers(const RecipePlan& plan, const Reference& reference, const Reference& other_seed,
                   const LossScaler::Saved& found_scaler, PrecisionRun& run,
                   const std::function<void(std::uint32_t, std::uint32_t)>& tell) {
  const std::size_t most = std::min(run.layers.size(), kKeptLayers);
  const auto of = static_cast<std::uint32_t>(4 + 2 * most);
  const double loss_wanted = loss_that_restores(run.outcome, run.final_loss, reference);
  const auto note = [&](const RecipePlan& tried, KeptTrial trial) {
    if (!tried.scaler.empty() && !run.steps.empty()) trial.start_scale = run.steps.back().scale;
    run.trials.push_back(std::move(trial));
    tell(static_cast<std::uint32_t>(std::min<std::size_t>(run.trials.size(), of)), of);
    return run.trials.back().restored;
  };
  const auto restores = [&](const RecipePlan& tried) {
    return note(tried, run_trial(tried, reference, loss_wanted));
  };
  const auto restores_elsewhere = [&](RecipePlan tried, double wanted) {
    ++tried.seed;
    KeptTrial trial = run_trial(tried, other_seed, wanted);
    trial.other_seed = true;
    return note(tried, std::move(trial));
  };
  const bool has_other = other_seed.has_learnt;
  if (has_other && restores_elsewhere(plan, other_seed.allowed_loss)) return;
  const double wanted_elsewhere =
      has_other ? loss_that_restores(run.outcome, run.trials.back().final_loss, other_seed) : 0;
  const Besides besides = besides_layers(plan);
  // With all that has parameters in fp32 it would not be the recipe any more.
  const auto leaves_any = [&](const RecipePlan& tried) {
    return std::ranges::any_of(besides.parameters, [&](const std::string& parameter) {
      return std::ranges::none_of(tried.kept, [&](const std::string& kept) { return is_within(parameter, kept); });
    });
  };
  RecipePlan base = plan;
  base.masters = besides.masters;
  // Steps that a scaler skips while it finds its scale are no fault of a layer.
  if (run.outcome == PrecisionOutcome::kWorse && run.skipped > run.nonfinite) base.scaler = found_scaler;
  bool restored = (base.masters || !base.scaler.empty()) && restores(base);
  if (!restored) {
    RecipePlan all = plan;
    all.keep_all = true;
    if (!restores(all)) return;
  }
  RecipePlan best = base;
  for (std::size_t i = 0; i < most && !restored; ++i) {
    best.kept = {run.layers[i].layer};
    restored = leaves_any(best) && restores(best);
  }
  if (!restored) best.kept.clear();
  for (std::size_t i = 0; i < run.layers.size() && best.kept.size() < kKeptLayers && !restored; ++i) {
    const std::string& layer = run.layers[i].layer;
    // What is below a kept layer is kept with it.
    if (std::ranges::any_of(best.kept, [&](const std::string& kept) { return is_within(layer, kept); })) continue;
    best.kept.insert(layer);
    if (!leaves_any(best)) return;
    restored = best.kept.size() > 1 && restores(best);
  }
  if (!restored) return;
  const auto try_without = [&](const auto& take_away) {
    RecipePlan fewer = best;
    take_away(fewer);
    const bool is_left = !fewer.kept.empty() || fewer.masters || !fewer.scaler.empty();
    if (is_left && restores(fewer)) best = fewer;
  };
  const std::vector<std::string> kept(best.kept.begin(), best.kept.end());
  for (const std::string& layer : kept) {
    if (best.kept.size() > 1) try_without([&](RecipePlan& fewer) { fewer.kept.erase(layer); });
  }
  if (best.masters) try_without([](RecipePlan& fewer) { fewer.masters = false; });
  if (!best.scaler.empty()) try_without([](RecipePlan& fewer) { fewer.scaler.clear(); });
  if (has_other && !restores_elsewhere(best, wanted_elsewhere)) return;
  run.keep.assign(best.kept.begin(), best.kept.end());
  run.keep_masters = best.masters;
  if (!best.scaler.empty()) run.start_scale = run.steps.back().scale;
}

}  // namespace nanhunt::engine
