// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/exploding.h"

#include <fmt/format.h>

#include <cmath>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr double kTellAsFactor = 10;  // a larger update reads better as a factor than in percent

}  // namespace

void report_exploding(Finding& f, const Growth& g) {
  const std::string where = f.place.op.value_or("an op") + (f.place.module ? " in " + *f.place.module : "");
  f.evidence.insert(f.evidence.begin(),
                    fmt::format("The first overflow was at {} ({}): {}.", where, phase_name(f.place.phase), f.title));
  f.cls = FindingClass::kExploding;
  f.place.op.reset();
  f.place.module = g.fastest;
  f.advice = {make_advice("lower-lr"), make_advice("warm-up"), make_advice("clip-gradients")};
  const bool has_lr = std::isfinite(g.lr) && g.lr > 0;
  if (g.in_one_update) {
    f.title = fmt::format("Training diverged: the update of step {} made the weights of {} of {} layers at least {} times as large",
                          g.from_step, g.grown, g.layers, number(kOneUpdate));
    f.explanation = fmt::format(
        "The loss of that step was {}, its gradient norm {}{}. {} grew most: norm {} to {}. No op is at fault: the update was "
        "too long, and where what follows first passes the format is chance.",
        number(g.loss_from), number(g.gradient_from), has_lr ? fmt::format(", at a learning rate of {}", number(g.lr)) : "",
        g.fastest, number(g.fastest_from), number(g.fastest_to));
    // An update is as long as the rate, but for weight decay: one that changes a layer by a tenth is a usual first one.
    if (has_lr) f.evidence.push_back(fmt::format("At a learning rate of {} the same update would have changed {} by {}.",
                                                 number(g.lr * kUpdateRatio / g.update_ratio), g.fastest, percent(kUpdateRatio)));
    return;
  }
  f.title = fmt::format("Training diverged: the loss grew from {} to {} in {} before anything overflowed",
                        number(g.loss_from), number(g.loss_to), count_of(g.to_step - g.from_step, "step"));
  const std::string update = g.update_ratio < kTellAsFactor ? percent(g.update_ratio)
                                                            : number(g.update_ratio) + " times what it was";
  f.explanation = fmt::format(
      "From step {} to step {} the gradient norm grew from {} to {}, and the weights of {} of {} layers at least "
      "doubled, {} fastest: norm {} to {}, by up to {} in one update. No op is at fault: each update overshoots and "
      "makes the next one larger, and where that first passes the format is chance.",
      g.from_step, g.to_step, number(g.gradient_from), number(g.gradient_to), g.grown, g.layers, g.fastest,
      number(g.fastest_from), number(g.fastest_to), update);
  if (has_lr) f.evidence.push_back(fmt::format("The learning rate of step {} was {}.", g.from_step, number(g.lr)));
}

}  // namespace nanhunt::analyze
