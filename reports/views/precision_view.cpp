// SPDX-License-Identifier: Apache-2.0
#include "reports/views/precision_view.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr int kLossDigits = 4, kTimeDigits = 3;
constexpr std::size_t kNamesInSentence = 8;
constexpr std::string_view kUnknown = "—";

std::string loss_text(double loss) { return format_short(loss, kLossDigits); }

std::string share_text(const std::optional<double>& share) {
  return share ? format_percent(*share) : std::string(kUnknown);
}

std::string error_text(double error) {
  if (std::isnan(error)) return std::string(kUnknown);
  return std::isinf(error) ? "not finite" : format_percent(error);
}

std::string milliseconds(double seconds) { return format_short(1000 * seconds, kTimeDigits) + " ms"; }

std::string time_text(const StepTimes& time) {
  if (time.steps == 0) return std::string(kUnknown);
  return milliseconds(time.median) + " (" + format_short(1000 * time.low, kTimeDigits) + " to " +
         format_short(1000 * time.high, kTimeDigits) + ")";
}

std::uint64_t of_kind(const StepMemory& memory, MemoryKind kind) {
  return memory.largest[static_cast<std::size_t>(kind)];
}

std::string bytes_text(const std::optional<StepMemory>& memory, MemoryKind kind) {
  return memory ? format_bytes(of_kind(*memory, kind)) : std::string(kUnknown);
}

std::string names_text(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < names.size() && i < kNamesInSentence; ++i) shown.push_back(clip(names[i], kNameLimit));
  std::string text = join(shown, ", ");
  if (names.size() > shown.size()) text += " and " + format_count(names.size() - shown.size()) + " more";
  return text;
}

std::string scale_text(double scale) { return "a loss scale of " + format_short(scale) + " from the start"; }

// "fc1, fc2, fp32 masters"
std::string kept_text(const KeptTrial& trial) {
  std::vector<std::string> parts;
  if (trial.all_layers) parts.push_back("all layers");
  if (!trial.layers.empty()) parts.push_back(names_text(trial.layers));
  if (trial.masters) parts.push_back("fp32 masters");
  if (trial.start_scale) parts.push_back(scale_text(*trial.start_scale));
  if (parts.empty()) parts.push_back("nothing");
  if (trial.other_seed) parts.push_back("from another seed");
  return join(parts, ", ");
}

bool has_cure(const PrecisionRun& run) { return !run.keep.empty() || run.keep_masters || run.start_scale; }

bool is_cure(const PrecisionRun& run, const KeptTrial& trial) {
  return trial.restored && !trial.all_layers && !trial.other_seed && trial.layers == run.keep &&
         trial.masters == run.keep_masters && trial.start_scale == run.start_scale;
}

// "keep fc2 in fp32, use fp32 master weights and optimizer state"
std::string what_to_do(const PrecisionRun& run) {
  std::vector<std::string> parts;
  if (!run.keep.empty()) parts.push_back("keep " + names_text(run.keep) + " in fp32");
  if (run.keep_masters) parts.push_back("use fp32 master weights and optimizer state");
  if (run.start_scale) parts.push_back("use " + scale_text(*run.start_scale));
  return join(parts, " and ");
}

std::string outcome_word(PrecisionOutcome outcome) {
  switch (outcome) {
    case PrecisionOutcome::kSame:
      return "as good as fp32";
    case PrecisionOutcome::kLostSteps:
      return "lost steps";
    case PrecisionOutcome::kBadValidation:
      return "validation falls short";
    case PrecisionOutcome::kWorse:
      return "worse than fp32";
    case PrecisionOutcome::kNonFinite:
      return "not finite";
    case PrecisionOutcome::kStopped:
      return "stopped";
    case PrecisionOutcome::kRefused:
      return "refused";
    case PrecisionOutcome::kNoReference:
      return "nothing to compare with";
  }
  return "";
}

std::string no_reference_sentence(const PrecisionRun& fp32) {
  if (!std::isfinite(fp32.final_loss) || fp32.steps.empty()) return "fp32 itself does not stay finite.";
  return "fp32 has learnt next to nothing in " + plural(fp32.steps.size(), "step", "steps") + ": its loss is " +
         loss_text(fp32.steps.front().loss) + " at first and " + loss_text(fp32.final_loss) + " at the end.";
}

std::string course_sentence(const PrecisionRun& run, const PrecisionRun& fp32) {
  const std::string against = loss_text(run.final_loss) + " against " + loss_text(fp32.final_loss) + " in fp32";
  switch (run.outcome) {
    case PrecisionOutcome::kSame:
      return "The final loss is " + against + ".";
    case PrecisionOutcome::kLostSteps:
      return "The final loss is " + against + ", but in " + plural(run.nonfinite, "step", "steps") +
             " it was not finite and nothing was learnt.";
    case PrecisionOutcome::kBadValidation:
      return "The final loss is " + against + ", but in its own format the loss of the validation is " +
             (run.validation ? loss_text(run.validation->loss) : std::string(kUnknown)) + ".";
    case PrecisionOutcome::kWorse: {
      std::string text = "The final loss is " + against + ".";
      if (run.nonfinite != 0) text += " In " + plural(run.nonfinite, "step", "steps") + " it was not finite.";
      if (run.skipped != 0) text += " The loss scaler skipped " + plural(run.skipped, "step", "steps") + ".";
      return text;
    }
    case PrecisionOutcome::kNonFinite:
      return "The loss is not finite at the end; fp32 ends at " + loss_text(fp32.final_loss) + ".";
    case PrecisionOutcome::kStopped:
      return "Training was ended after " + plural(run.steps.size(), "step", "steps") + ": " +
             clip(run.why, kSentenceLimit);
    case PrecisionOutcome::kRefused:
      return "It does not take this training: " + clip(run.why, kSentenceLimit);
    case PrecisionOutcome::kNoReference:
      return no_reference_sentence(fp32);
  }
  return "";
}

// What the trials have shown.
std::string keep_sentence(const PrecisionRun& run) {
  if (run.trials.empty()) return run.outcome == PrecisionOutcome::kSame ? " No layer has to stay in fp32." : "";
  if (has_cure(run)) {
    const auto cure = std::ranges::find_if(run.trials, [&](const KeptTrial& trial) { return is_cure(run, trial); });
    if (cure == run.trials.end()) return "";
    return " What helps: " + what_to_do(run) + ". Trained so, it ends at " + loss_text(cure->final_loss) +
           ", and the loss of every step is finite.";
  }
  if (run.trials.size() == 1 && run.trials.front().other_seed) {
    return " From another seed it is as good as fp32: the difference is chance.";
  }
  const auto found = std::ranges::find_if(run.trials, [](const KeptTrial& trial) { return trial.all_layers; });
  if (found == run.trials.end()) return "";
  const KeptTrial& all = *found;
  if (run.trials.back().other_seed && all.restored) {
    return " With every layer kept in fp32 it ends at " + loss_text(all.final_loss) +
           "; the few layers that restore it from this seed do not from another.";
  }
  if (!all.restored) {
    return " With every layer kept in fp32 it is no better: look at the loss, the loss scale and the optimizer.";
  }
  return " With every layer kept in fp32 it ends at " + loss_text(all.final_loss) +
         "; with the worst few alone it does not get there.";
}

TableView table_of(std::string caption, std::vector<std::string> heads, std::vector<bool> numeric) {
  TableView table;
  table.caption = std::move(caption);
  table.heads = std::move(heads);
  table.numeric = std::move(numeric);
  return table;
}

TableView make_results(const PrecisionComparison& c) {
  TableView table = table_of(
      "What came of it: losses and accuracies of the last fifth of the steps, and of data that "
      "was not trained on, in the recipe's own format and with the same weights in fp32",
      {"Recipe", "Outcome", "Final loss", "Accuracy", "Validation loss", "in fp32", "Its accuracy", "in fp32 ",
       "Lost steps", "Skipped"},
      {false, false, true, true, true, true, true, true, true, true});
  for (const PrecisionRun& run : c.runs) {
    const bool is_fp32 = &run == &c.runs.front();
    const auto loss = [](const std::optional<ValidationResult>& result) {
      return result ? loss_text(result->loss) : std::string(kUnknown);
    };
    const auto share = [](const std::optional<ValidationResult>& result) {
      return result ? share_text(result->accuracy) : std::string(kUnknown);
    };
    const bool has_run = !run.steps.empty();
    table.rows.push_back({{clip(run.recipe, kNameLimit),
                           is_fp32 && run.outcome == PrecisionOutcome::kSame ? "" : outcome_word(run.outcome),
                           has_run ? loss_text(run.final_loss) : std::string(kUnknown), share_text(run.accuracy),
                           loss(run.validation), loss(run.validation_in_fp32), share(run.validation),
                           share(run.validation_in_fp32), format_count(run.nonfinite), format_count(run.skipped)},
                          run.outcome != PrecisionOutcome::kSame});
  }
  return table;
}

TableView make_cost(const PrecisionComparison& c) {
  TableView table = table_of(
      "What a step takes: the median time (a tenth to nine tenths of the steps), the most memory at "
      "once, and the most of each kind",
      {"Recipe", "Time", "Peak", "Parameters", "Masters", "Gradients", "State", "Casts", "Activations"},
      {false, true, true, true, true, true, true, true, true});
  for (const PrecisionRun& run : c.runs) {
    table.rows.push_back(
        {{clip(run.recipe, kNameLimit), time_text(run.time),
          run.memory ? format_bytes(run.memory->peak) : std::string(kUnknown),
          bytes_text(run.memory, MemoryKind::kParameters), bytes_text(run.memory, MemoryKind::kMasters),
          bytes_text(run.memory, MemoryKind::kGradients), bytes_text(run.memory, MemoryKind::kOptimizerState),
          bytes_text(run.memory, MemoryKind::kWeightCasts), bytes_text(run.memory, MemoryKind::kActivations)}});
  }
  return table;
}

TableView make_layers(const PrecisionComparison& c, std::size_t limit) {
  TableView table =
      table_of("Layers in each recipe, those that harm the gradient of the whole model most first",
               {"Layer", "Recipe", "Alone", "Kept", "Output", "Gradient", "Overflowed", "Flushed", "First overflow"},
               {false, false, true, true, true, true, true, true, true});
  for (const PrecisionRun& run : c.runs) {
    for (std::size_t i = 0; i < run.layers.size() && i < limit; ++i) {
      const LayerPrecision& layer = run.layers[i];
      const auto share = [&](std::uint64_t part) {
        if (part == 0) return std::string("0");
        return format_count(part) + " (" +
               format_percent(static_cast<double>(part) / static_cast<double>(layer.elements)) + ")";
      };
      table.rows.push_back({{clip(layer.layer, kNameLimit), clip(run.recipe, kNameLimit), error_text(layer.alone_error),
                             error_text(layer.kept_error), error_text(layer.output_error),
                             error_text(layer.gradient_error), share(layer.overflowed), share(layer.flushed),
                             layer.first_overflow ? format_count(*layer.first_overflow) : std::string(kUnknown)},
                            layer.overflowed != 0 || std::isinf(layer.output_error) ||
                                std::isinf(layer.gradient_error) || std::isinf(layer.alone_error)});
    }
    table.omitted += run.layers.size() - std::min(run.layers.size(), limit);
  }
  return table;
}

TableView make_trials(const PrecisionComparison& c) {
  TableView table = table_of(
      "Trainings from the start with layers kept in fp32, with fp32 masters, or with the loss scale that was found",
      {"What was changed", "Recipe", "Outcome", "Final loss", "Validation", "Lost steps", "Skipped"},
      {false, false, false, true, true, true, true});
  for (const PrecisionRun& run : c.runs) {
    for (const KeptTrial& trial : run.trials) {
      const std::string outcome = trial.restored          ? "restored"
                                  : trial.refused.empty() ? "no cure"
                                                          : "refused: " + clip(trial.refused, kNameLimit);
      table.rows.push_back({{kept_text(trial), clip(run.recipe, kNameLimit), outcome, loss_text(trial.final_loss),
                             trial.validation_loss ? loss_text(*trial.validation_loss) : std::string(kUnknown),
                             format_count(trial.nonfinite), format_count(trial.skipped)}});
    }
  }
  return table;
}

TableView make_sweep(const PrecisionComparison& c) {
  TableView table = table_of("Other batch sizes: time and memory of a step",
                             {"Batch size", "Recipe", "Time", "Samples a second", "Peak", "Activations", "Note"},
                             {true, false, true, true, true, true, false});
  for (const BatchSizeRow& row : c.sweep) {
    const bool timed = row.time.steps != 0 && row.time.median > 0;
    table.rows.push_back(
        {{format_signed_count(row.batch_size), clip(row.recipe, kNameLimit), time_text(row.time),
          timed ? format_count(static_cast<std::uint64_t>(static_cast<double>(row.batch_size) / row.time.median + 0.5))
                : std::string(kUnknown),
          row.memory ? format_bytes(row.memory->peak) : std::string(kUnknown),
          bytes_text(row.memory, MemoryKind::kActivations), clip(row.why, kNameLimit)}});
  }
  return table;
}

PrecisionCurve make_curve(const PrecisionRun& run) {
  Analysis course;
  for (const PrecisionStep& step : run.steps) {
    course.timeline.push_back({.step = step.step,
                               .skipped = step.skipped,
                               .loss = step.loss,
                               .lr = std::nan(""),
                               .scale = step.scale,
                               .gradient_norm = std::nan(""),
                               .weight_norm = std::nan("")});
  }
  return {clip(run.recipe, kNameLimit), make_timeline_view(course)};
}

void add_headline(PrecisionView& view, const PrecisionComparison& c) {
  std::vector<std::string> good, other, refused;
  std::vector<std::pair<std::string, std::vector<std::string>>> cures;  // what helps, and in which recipes
  for (std::size_t i = 1; i < c.runs.size(); ++i) {
    const PrecisionRun& run = c.runs[i];
    (run.outcome == PrecisionOutcome::kSame      ? good
     : run.outcome == PrecisionOutcome::kRefused ? refused
                                                 : other)
        .push_back(run.recipe);
    if (!has_cure(run)) continue;
    const auto known = std::ranges::find(cures, what_to_do(run), &decltype(cures)::value_type::first);
    (known == cures.end() ? cures.emplace_back(what_to_do(run), std::vector<std::string>()) : *known)
        .second.push_back(run.recipe);
  }
  view.good = other.empty() && refused.empty();
  const PrecisionRun& fp32 = c.runs.front();
  if (fp32.outcome == PrecisionOutcome::kNoReference) {
    view.good = false;
    view.word = "Nothing to compare with";
    view.headline = std::isfinite(fp32.final_loss)
                        ? no_reference_sentence(fp32) + " Train longer: --steps."
                        : "fp32 itself does not stay finite: nanhunt train " + clip(c.workload, kNameLimit) + " finds out why.";
    return;
  }
  if (c.runs.size() == 1) {
    view.word = "fp32 alone";
    view.headline = "fp32 ends at a loss of " + loss_text(fp32.final_loss) + "; no other recipe was asked for.";
    return;
  }
  view.word = view.good ? "As good as fp32" : good.empty() ? "Not as good as fp32" : "Some are as good as fp32";
  if (view.good) {
    view.headline = names_text(good) + (good.size() == 1 ? " ends" : " end") + " as far as fp32, whose loss is " +
                    loss_text(fp32.final_loss) + " (up to " + loss_text(c.allowed_loss) +
                    " counts). No layer has to stay in fp32.";
    return;
  }
  if (!other.empty()) {
    view.headline = names_text(other) + (other.size() == 1 ? " falls" : " fall") +
                    " short of fp32, which ends at a loss of " + loss_text(fp32.final_loss) + ".";
  }
  if (!refused.empty()) {
    view.headline += (other.empty() ? "" : " ") + names_text(refused) +
                     (refused.size() == 1 ? " does not take this training." : " do not take this training.");
  }
  for (const auto& [what, recipes] : cures) view.headline += " In " + names_text(recipes) + " " + what + ".";
}

}  // namespace

PrecisionView view_precision(const PrecisionComparison& c, std::size_t layers) {
  PrecisionView view;
  if (c.runs.empty()) return view;
  add_headline(view, c);
  view.run_line = clip(c.workload, kNameLimit) + " · seed " + format_count(c.seed) + " · " +
                  plural(c.steps, "step", "steps") + " of " + format_signed_count(c.batch_size) + " samples";
  for (std::size_t i = 1; i < c.runs.size(); ++i) {
    const PrecisionRun& run = c.runs[i];
    view.answers.push_back({clip(run.recipe, kNameLimit), outcome_word(run.outcome),
                            course_sentence(run, c.runs.front()) + keep_sentence(run), run.outcome});
  }
  view.results = make_results(c);
  view.cost = make_cost(c);
  view.layers = make_layers(c, layers);
  view.trials = make_trials(c);
  view.sweep = make_sweep(c);
  for (const PrecisionRun& run : c.runs) view.curves.push_back(make_curve(run));
  view.tolerance_note =
      "As good as fp32: a final loss of at most " + loss_text(c.allowed_loss) + ", which is fp32's and " +
      format_percent(c.tolerance) + " of what fp32 learnt" +
      (c.other_seed_loss ? ", or as much as another seed makes of it (" + loss_text(*c.other_seed_loss) + ")" : "") +
      ", no step whose loss is not finite where fp32's is" +
      (c.allowed_validation_loss
           ? ", and a validation whose loss is at most " + loss_text(*c.allowed_validation_loss) + "."
           : ".");
  if (const auto bad = std::ranges::count_if(c.runs.front().steps,
                                             [](const PrecisionStep& step) { return !std::isfinite(step.loss); });
      bad != 0) {
    view.tolerance_note +=
        " In fp32 itself the loss of " + plural(static_cast<std::uint64_t>(bad), "step", "steps") + " is not finite.";
  }
  view.time_note =
      "Times are of the bundled engine on this machine's processor, which computes 16 bits by widening to fp32. They "
      "say "
      "nothing of a GPU, where 16 bits are what makes a step fast.";
  view.memory_note =
      "Bytes of tensors, counted as they came and went in one step. Masters are fp32 copies that the optimizer steps; "
      "casts "
      "are copies of weights that autocast makes. Buffers, the batch and what the optimizer needs for a moment are in "
      "the peak as well.";
  view.layers_note =
      "Alone: the error of the whole model's gradient where this layer alone, with what is below it, computes in the "
      "recipe's format and all others in fp32. Kept: the same where it alone is in fp32. Output and gradient: the layer's own, beside "
      "fp32 "
      "on the same weights and batch, with what earlier layers did to them. Overflowed: made of finite numbers, and "
      "not "
      "finite where fp32's is. Flushed: 0 where fp32's is not.";
  return view;
}

}  // namespace nanhunt::reports
