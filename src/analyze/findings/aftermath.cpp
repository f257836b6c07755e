// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/aftermath.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// "fc1.weight" of "parameter fc1.weight"; "": no such sink.
std::string_view name_after(std::string_view kind, std::string_view sink) {
  return sink.starts_with(kind) ? sink.substr(kind.size()) : std::string_view();
}

bool is_lasting(std::string_view sink) {
  return sink.starts_with("parameter") || sink.starts_with("optimizer state") || sink.starts_with("buffer");
}

// A fault that left something bad behind, which no later step mends by itself.
bool leaves_behind(const Finding& f) {
  return f.severity == Severity::kFault && f.bad_steps.count > 0 && std::any_of(f.sinks.begin(), f.sinks.end(), is_lasting);
}

// Bad numbers that no operation was seen to make of good ones: what it read beside may not have been watched.
bool has_no_origin(const Finding& f) {
  return f.severity != Severity::kInfo && (f.cls == FindingClass::kBadState || f.cls == FindingClass::kUnexplained);
}

// What backward and the optimizer make of a loss that is bad already, as of gradients that are sparse and not read.
bool comes_of_its_loss(const Finding& f, const Finding& lead) {
  const Phase phase = f.place.phase;
  const bool after = phase == Phase::kBackward || phase == Phase::kComm || phase == Phase::kUnscale || phase == Phase::kClip ||
                     phase == Phase::kOptimizer || phase == Phase::kUpdate;
  return f.cls == FindingClass::kUnexplained && after && began(f) == began(lead) && f.place.step == lead.place.step &&
         f.place.seq > lead.place.seq && lead.severity == Severity::kFault &&
         std::find(lead.sinks.begin(), lead.sinks.end(), "loss") != lead.sinks.end();
}

// Is the tensor of `f` one that `lead` spoilt, or a parameter whose state it spoilt?
bool is_spoilt_by(const Finding& f, const Finding& lead) {
  if (f.cls != FindingClass::kBadState || !f.place.module || f.place.module->empty()) return false;
  const std::string& name = *f.place.module;
  return std::any_of(lead.sinks.begin(), lead.sinks.end(), [&](const std::string& sink) {
    if (name_after("parameter ", sink) == name || name_after("buffer ", sink) == name) return true;
    const std::string_view state = name_after("optimizer state ", sink);
    return state == name || (state.starts_with(name) && state.substr(name.size()).starts_with('.'));
  });
}

// What a model is given that is bad as a whole: data, or what a loop hands on to its next step.
bool may_be_carried(const Finding& f) {
  return f.cls == FindingClass::kBadInput && f.severity != Severity::kInfo && f.tensor && f.tensor->stats.numel > 0 &&
         f.bad_elements == f.tensor->stats.numel;
}

// Was it carried (a hidden state, a sample that is denoised, parameters that no module has) through steps whose operations
// were not kept? All of them were bad since `lead`.
bool is_carried_from(const Finding& f, const Finding& lead, const StepSet& bad) {
  const bool found = (has_no_origin(f) || may_be_carried(f)) && f.place.op && f.place.op->starts_with('<');
  if (!found || lead.severity != Severity::kFault || !lead.place.op || began(f) <= lead.bad_steps.first) return false;
  const std::uint64_t steps = std::uint64_t{began(f)} - lead.bad_steps.first + 1;
  return lead.bad_steps.unwatched > 0 && bad.count_between(lead.bad_steps.first, began(f)) == steps;
}

bool follows(const Finding& f, const Finding& lead, const StepSet& bad) {
  if (comes_of_its_loss(f, lead) || is_carried_from(f, lead, bad)) return true;
  if (!has_no_origin(f) || !leaves_behind(lead) || began(f) <= lead.bad_steps.first) return false;
  if (is_spoilt_by(f, lead)) return true;
  const std::uint64_t between = std::uint64_t{began(f)} - lead.bad_steps.first;
  return began(f) <= lead.bad_steps.last + 1 || bad.count_between(lead.bad_steps.first, began(f)) > between;
}

void join(Finding& lead, const Finding& f, const StepSet& bad) {
  lead.bad_steps.last = std::max({lead.bad_steps.last, f.bad_steps.last, f.last_step});
  lead.bad_steps.count = std::max(lead.bad_steps.count, bad.count_between(lead.bad_steps.first, lead.bad_steps.last));
  lead.bad_steps.unwatched = std::min(lead.bad_steps.unwatched + f.bad_steps.unwatched, lead.bad_steps.count - lead.bad_steps.anew);
  for (const std::string& sink : f.sinks) {
    const bool known = std::any_of(lead.sinks.begin(), lead.sinks.end(), [&](const std::string& one) {
      return one == sink || (one.starts_with(sink) && one.size() > sink.size() && one[sink.size()] == ' ');
    });
    if (!known && lead.sinks.size() < kMaxSinks) lead.sinks.push_back(sink);
  }
}

void keep_others(std::vector<Finding>& findings, const std::vector<bool>& joined) {
  std::vector<Finding> kept;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (!joined[i]) kept.push_back(std::move(findings[i]));
  }
  findings = std::move(kept);
}

// What another rank gave was bad, and nobody knows where it became so.
bool came_from_elsewhere(const Finding& f) {
  return f.cls == FindingClass::kComm && f.severity == Severity::kFault && !f.advice.empty() &&
         f.advice.front().id == "look-at-other-ranks";
}

}  // namespace

void join_handed_on(std::vector<Finding>& findings) {
  std::vector<bool> joined(findings.size());
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& f = findings[i];
    if (!came_from_elsewhere(f)) continue;
    const auto lead = std::find_if(findings.begin(), findings.end(), [&](const Finding& one) {
      const bool there = std::find(f.ranks.begin(), f.ranks.end(), one.rank) == f.ranks.end();
      return there && leaves_behind(one) && began(one) < began(f) && began(f) <= one.bad_steps.last + 1;
    });
    if (lead == findings.end()) continue;
    lead->evidence.push_back(fmt::format("The bad numbers it left reached {} through {} in step {}.", ranks_text(f.ranks),
                                         f.place.op.value_or("a call"), began(f)));
    joined[i] = true;
  }
  keep_others(findings, joined);
}

void join_aftermath(std::vector<Finding>& findings, const StepSet& bad) {
  std::vector<std::size_t> order(findings.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return began(findings[a]) < began(findings[b]); });
  std::vector<bool> joined(findings.size());
  for (std::size_t at = 0; at < order.size(); ++at) {
    const Finding& f = findings[order[at]];
    const auto lead = std::find_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(at),
                                   [&](std::size_t i) { return !joined[i] && follows(f, findings[i], bad); });
    if (lead == order.begin() + static_cast<std::ptrdiff_t>(at)) continue;
    join(findings[*lead], f, bad);
    joined[order[at]] = true;
  }
  keep_others(findings, joined);
}

}  // namespace nanhunt::analyze
