// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/swallowed.h"

#include <fmt/format.h>

#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// From where it began to the op that ended it for forward.
Chain chain_to(const Finding& f, const Swallow& swallow, const Names& names) {
  ChainNode origin;
  origin.seq = f.place.seq;
  origin.step = f.place.step;
  origin.phase = f.place.phase;
  origin.module = f.place.module.value_or("");
  origin.op = f.place.op.value_or("");
  origin.lifecycle = Lifecycle::kAppear;
  origin.role = "origin";
  if (f.output) {
    origin.nan = f.output->stats.nan;
    origin.pos_inf = f.output->stats.pos_inf;
    origin.neg_inf = f.output->stats.neg_inf;
    origin.numel = f.output->stats.numel;
  }
  origin.label = fmt::format("{}: {}", origin.module.empty() ? origin.op : origin.op + " in " + origin.module,
                             bad_count_text(origin.nan, origin.pos_inf, origin.neg_inf, origin.numel));
  ChainNode end;
  end.seq = swallow.at.seq;
  end.step = swallow.at.step;
  end.phase = swallow.at.phase;
  end.module = names.text(swallow.at.module);
  end.op = names.text(swallow.at.op);
  end.lifecycle = Lifecycle::kDisappear;
  end.numel = swallow.output.stats.numel;
  end.role = "carrier";
  end.label = place_text(swallow.at, names) + ": finite again";
  Chain chain;
  chain.nodes = {origin, end};
  chain.edges = {{0, 1}};
  return chain;
}

}  // namespace

void report_swallowed(Finding& f, const Swallow& swallow, const Names& names) {
  const std::string by = place_text(swallow.at, names);
  const ValueStats& out = swallow.output.stats;
  f.severity = swallow.dead() ? Severity::kFault : Severity::kWarning;
  f.lifecycle = Lifecycle::kAppear;
  f.first_step = swallow.steps.first();
  f.last_step = swallow.steps.last();
  f.occurrence_count = swallow.steps.count();
  f.bad_steps = {};
  f.title += fmt::format("; {} hides it", by);
  f.explanation += fmt::format(
      " {} took the infinite numbers in and gave finite ones out, so nothing downstream is bad, but whatever the true "
      "results were is lost.",
      by);
  if (out.counted()) {
    f.evidence.push_back(out.zero == out.numel
                             ? fmt::format("All {} results of {} are 0.", out.numel, by)
                             : fmt::format("{} gave numbers from {} to {}, {} of them 0.", by, number(out.min),
                                           number(out.max), out.zero));
  }
  if (swallow.dead()) {
    f.evidence.push_back(fmt::format("Its results have been constant for {} to the end{}: what it feeds is dead.",
                                     count_of(swallow.dead_steps, "step"),
                                     swallow.gradient_seen ? ", and no gradient comes back through it" : ""));
  }
  f.chain = chain_to(f, swallow, names);
}

void report_replaced(Finding& f, const Swallow& swallow, const Names& names) {
  const std::string by = place_text(swallow.at, names);
  f.title += fmt::format("; {} hides it until backward", by);
  f.explanation +=
      fmt::format(" {} put finite numbers in their place; backward met the same argument again and made NaN.", by);
  f.chain = chain_to(f, swallow, names);
}

}  // namespace nanhunt::analyze
