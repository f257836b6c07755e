// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/exploding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/analyze/rules/rule.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr double kTellAsFactor = 10;  // a larger update reads better as a factor than in percent

std::string update_text(double ratio) {
  return ratio < kTellAsFactor ? percent(ratio) : number(ratio) + " times";
}

// "The updates of steps 3 to 6 changed fc1 by 2%, 11%, 60% and 14 times its norm."
std::string updates_text(const Growth& g) {
  if (g.updates.size() < 2) return "";
  std::vector<std::string> parts;
  for (const double update : g.updates) parts.push_back(update_text(update));
  return fmt::format("The updates of steps {} to {} changed the norm of {} by {}.", g.updates_to + 1 - g.updates.size(),
                     g.updates_to, g.fastest, join(parts, parts.size(), " and "));
}

}  // namespace

void report_exploding(Finding& f, const Growth& g) {
  const std::string where = f.place.op.value_or("an op") + (f.place.module ? " in " + *f.place.module : "");
  f.evidence.insert(f.evidence.begin(),
                    fmt::format("The first overflow was at {} ({}): {}.", where, phase_name(f.place.phase), f.title));
  f.cls = FindingClass::kExploding;
  f.cause = g.kind == GrowthKind::kInOneUpdate ? "one update that was far too long" : "";
  f.place.op.reset();
  f.place.module = g.fastest;
  f.advice = {make_advice("lower-lr"), make_advice("warm-up"), make_advice("clip-gradients")};
  const bool has_lr = std::isfinite(g.lr) && g.lr > 0;
  std::vector<std::string> told;
  if (!g.wide_column.empty()) {
    f.advice.insert(f.advice.begin() + 1, make_advice("scale-inputs"));
    told.push_back(fmt::format("What the model was given first is out of scale: {} reaches {} times as far as the median one.",
                               g.wide_column, number(std::round(g.column_ratio))));
  }
  const auto first_long = std::find_if(g.updates.begin(), g.updates.end(), [](double ratio) { return ratio >= kUpdateRatio; });
  if (g.kind == GrowthKind::kInOneUpdate) {
    f.title = fmt::format("Training diverged: the update of step {} made the weights of {} of {} layers at least {} times as large",
                          g.from_step, g.grown, g.layers, number(kOneUpdate));
    f.explanation = fmt::format(
        "The loss of that step was {}, its gradient norm {}{}. {} grew most: norm {} to {}. No op is at fault: the update was "
        "too long, and where what follows first passes the format is chance.",
        number(g.loss_from), number(g.gradient_from), has_lr ? fmt::format(", at a learning rate of {}", number(g.lr)) : "",
        g.fastest, number(g.fastest_from), number(g.fastest_to));
    // An update is as long as the rate, but for weight decay: one that changes a layer by a tenth is a usual first one.
    if (has_lr) told.push_back(fmt::format("At a learning rate of {} the same update would have changed {} by {}.",
                                           number(g.lr * kUpdateRatio / g.update_ratio), g.fastest, percent(kUpdateRatio)));
    add_if(told, updates_text(g));
    f.evidence.insert(f.evidence.begin() + 1, told.begin(), told.end());
    return;
  }
  f.title = fmt::format("Training diverged: the loss grew from {} to {} in {} before anything overflowed",
                        number(g.loss_from), number(g.loss_to), count_of(g.to_step - g.from_step, "step"));
  if (g.negative_lr < 0) {
    f.cause = "a learning rate below 0";
    f.advice = {make_advice("mend-schedule")};
    f.title += fmt::format(": its learning rate is below 0 from step {} on", g.negative_from);
    f.explanation = fmt::format(
        "The learning rate of step {} was {}: with a negative one each update goes up the gradient, so that the loss grows. "
        "From step {} to step {} it grew from {} to {}. No op is at fault.",
        g.negative_from, number(g.negative_lr), g.from_step, g.to_step, number(g.loss_from), number(g.loss_to));
    return;
  }
  const bool over_run = g.kind == GrowthKind::kOverRun;
  const std::string update = over_run ? "a little in each step" : "by up to " + update_text(g.update_ratio) + " in one update";
  f.explanation = fmt::format(
      "From step {} to step {} the gradient norm grew from {} to {}, and the weights of {} of {} layers at least "
      "doubled, {} fastest: norm {} to {}, {}. No op is at fault: {}, and where that first passes the format is chance.",
      g.from_step, g.to_step, number(g.gradient_from), number(g.gradient_to), g.grown, g.layers, g.fastest,
      number(g.fastest_from), number(g.fastest_to), update,
      over_run ? "the updates make the weights larger throughout"
                          : "each update overshoots and makes the next one larger");
  if (over_run) f.advice = {make_advice("check-update")};
  if (has_lr) told.push_back(fmt::format("The learning rate of step {} was {}.", g.from_step, number(g.lr)));
  if (first_long != g.updates.end()) {
    const double lr = g.update_lrs[static_cast<std::size_t>(first_long - g.updates.begin())];
    const auto step = g.updates_to + 1 - static_cast<std::uint64_t>(g.updates.end() - first_long);
    if (std::isfinite(lr) && lr > 0)
      told.push_back(fmt::format("At a learning rate of {} instead of {} the update of step {} would have changed {} by {}.",
                                 number(lr * kUpdateRatio / *first_long), number(lr), step, g.fastest, percent(kUpdateRatio)));
  }
  add_if(told, updates_text(g));
  f.evidence.insert(f.evidence.begin() + 1, told.begin(), told.end());
}

}  // namespace nanhunt::analyze
