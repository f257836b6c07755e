// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/train_outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "reports/json/json_lr_ramp.h"
#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "tools/nanhunt/lr_table.h"

namespace nanhunt::cli {

using nlohmann::json;
using scenarios::Scenario;

std::string scenario_list(bool as_json) {
  json list = json::array();
  std::string text, recipe;
  std::size_t width = 0;
  for (const Scenario& s : scenarios::all_scenarios()) width = std::max(width, s.name.size());
  for (const Scenario& s : scenarios::all_scenarios()) {
    const bool clean = s.expected.status == VerdictStatus::kClean;
    const std::string expected(clean ? "clean" : finding_class_name(s.expected.cls));
    list.push_back({{"name", s.name},
                    {"recipe", s.recipe},
                    {"summary", s.summary},
                    {"steps", s.steps},
                    {"expected", expected}});
    if (s.recipe != recipe) text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", s.recipe);
    recipe = s.recipe;
    text += fmt::format("  {:<{}} {:<18} {}\n", s.name, width, expected, s.summary);
  }
  return as_json ? reports::dump_json(list) + "\n" : text;
}

std::string outcome_json(const Scenario& scenario, const TrainOutcome& outcome) {
  json experiments = json::array();
  std::string headline;
  if (outcome.hunted) {
    headline = printable(outcome.hunted->analysis.verdict.headline);
    for (const ExperimentRecord& e : outcome.hunted->trials.experiments) {
      experiments.push_back({{"fix", e.fix},
                             {"description", e.description},
                             {"finite", e.finite},
                             {"further_steps", e.further_steps},
                             {"verified", e.verified}});
    }
  }
  const json answer = {{"scenario", scenario.name},
                       {"steps", outcome.steps},
                       {"first_loss", reports::json_number(outcome.first_loss)},
                       {"last_loss", reports::json_number(outcome.last_loss)},
                       {"first_bad_loss_step", outcome.first_bad_loss ? json(*outcome.first_bad_loss) : json()},
                       {"trace", outcome.attempt_dir.empty() ? json() : json(printable(outcome.attempt_dir))},
                       {"ops", outcome.counters.ops},
                       {"values", outcome.counters.values},
                       {"dropped_ops", outcome.counters.dropped_ops},
                       {"headline", headline.empty() ? json() : json(headline)},
                       {"ended_by", outcome.ended_by.empty() ? json() : json(printable(outcome.ended_by))},
                       {"lr_finder", outcome.ramp ? reports::lr_ramp_to_json(*outcome.ramp) : json()},
                       {"experiments", std::move(experiments)}};
  return reports::dump_json(answer) + "\n";
}

std::string outcome_text(const Scenario& scenario, const TrainOutcome& outcome, const std::string& run) {
  std::string text = fmt::format("{}: {} steps, loss {} -> {}\n", scenario.name, outcome.steps,
                                 reports::format_short(outcome.first_loss), reports::format_short(outcome.last_loss));
  if (outcome.ramp) text += lr_table(*outcome.ramp);
  if (!outcome.ended_by.empty()) {
    text += (outcome.by_anomaly ? "Anomaly mode ended training: " : "Training ended there: ") +
            printable(outcome.ended_by) + "\n";
  }
  if (outcome.ranks > 1) text += fmt::format("Of {} ranks, of which rank 0 is told here.\n", outcome.ranks);
  if (outcome.attempt_dir.empty()) return text + "Not watched (--level off): there is no trace.\n";
  const std::string watched = fmt::format("{} ops and {} values", outcome.counters.ops, outcome.counters.values);
  text += fmt::format("Watched {}; trace in {}\n", watched, printable(outcome.attempt_dir));
  if (outcome.counters.dropped_ops + outcome.counters.dropped_values + outcome.counters.dropped_other != 0) {
    text += fmt::format("Dropped {} ops and {} values: the report says what that means.\n",
                        outcome.counters.dropped_ops, outcome.counters.dropped_values);
  }
  if (outcome.hunted) {
    text += (outcome.by_anomaly ? "Where that came from: " : "") +
            printable(outcome.hunted->analysis.verdict.headline) + "\n";
    for (const ExperimentRecord& e : outcome.hunted->trials.experiments) {
      text += fmt::format("  tried on this run: {}: {}\n", e.description,
                          e.verified ? "cured it"
                          : e.finite ? "stays finite, but is no cure"
                                     : "did not help");
    }
  }
  text += fmt::format("Next: nanhunt report {}", printable(shell_word(run)));
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(run) / "report.html", ignored)) {
    text += " (report.html and report.json there still tell of an earlier attempt)";
  }
  return text + "\n";
}

}  // namespace nanhunt::cli
