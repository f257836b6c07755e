// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/score.h"

#include <fmt/format.h>

#include <algorithm>

namespace nanhunt::campaign {

std::optional<Expected> expect(const Target& target, const Plan& plan, const Rig& rig, const Witness& witness,
                               const RunLog& log) {
  Expected out{.cls = target.cls,
               .place = {},
               .modules = {},
               .module_scored = target.module_scored,
               .op_scored = target.op_scored,
               .phase_scored = target.phase.has_value(),
               .step_scored = target.step_scored};
  switch (target.witnessing) {
    case Witnessing::kWatched:
      if (!witness.planted() || witness.intruder()) return std::nullopt;
      out.place = *witness.planted();
      return out;
    case Witnessing::kPlanned:
      out.place = {plan.first_step, target.phase, target.module ? target.module(rig) : std::nullopt,
                   target.ops.empty() ? std::nullopt : std::optional(target.ops.front())};
      return out;
    case Witnessing::kSabotaged:
      if (!target.sabotaged->op) return std::nullopt;  // it never came to act
      out.place = *target.sabotaged;
      return out;
    case Witnessing::kDiverged: {
      if (!witness.first_bad_step()) return std::nullopt;
      out.place.step = *witness.first_bad_step();
      double most = 0;
      for (const auto& [layer, growth] : log.growth) most = std::max(most, growth);
      for (const auto& [layer, growth] : log.growth) {
        if (growth >= most / 2) out.modules.push_back(layer);
      }
      return out;
    }
  }
  return std::nullopt;
}

Answer answer_of(const Analysis& analysis) {
  Answer out;
  out.headline = analysis.verdict.headline;
  for (const Finding& f : analysis.findings) {
    if (f.id != analysis.verdict.origin.value_or("") || f.severity == Severity::kInfo) continue;
    out.given = true;
    out.place = {f.place.step, f.place.phase, f.place.module, f.place.op};
    out.cls = f.cls;
    out.fault = f.severity == Severity::kFault;
    out.headline = f.title;
  }
  return out;
}

bool origin_right(const Expected& e, const Answer& a) {
  if (!a.given) return false;
  if (e.step_scored && a.place.step != e.place.step) return false;
  if (e.phase_scored && a.place.phase != e.place.phase) return false;
  if (e.op_scored && a.place.op != e.place.op) return false;
  if (!e.module_scored) return true;
  if (e.modules.empty()) return a.place.module == e.place.module;
  return a.place.module && std::find(e.modules.begin(), e.modules.end(), *a.place.module) != e.modules.end();
}

bool class_right(const Expected& e, const Answer& a) { return a.given && a.cls == e.cls; }

bool said_not_reproducible(const Expected& e, const Answer& a) {
  return e.cls == FindingClass::kCorruption && a.given && a.cls == FindingClass::kNotReproducible &&
         a.place.step == e.place.step;
}

std::string text_of(const Place& place) {
  return fmt::format("step {} {} {} {}", place.step, place.phase ? phase_name(*place.phase) : "-",
                     place.module.value_or("-"), place.op.value_or("-"));
}

}  // namespace nanhunt::campaign
