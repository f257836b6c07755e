// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/changed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::string place_in_step(const OpRef& at, const Names& names) {
  return fmt::format("{} ({}, step {})", place_text(at, names), phase_name(at.phase), at.step);
}

std::string stats_text(const ValueStats& s) {
  if (!s.counted()) return s.any_nonfinite ? "not finite" : "finite";
  const std::string range = fmt::format("{} to {}, largest magnitude {}", number(s.min), number(s.max), number(s.amax));
  if (s.nonfinite() == s.numel) return bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel);
  if (s.nonfinite() == 0) return range;
  return fmt::format("{}; else {}", bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel), range);
}

double amax_before(const Case& c) {
  const Change& change = *c.birth.change;
  return change.before.known && change.before.stats.counted() ? change.before.stats.amax : change.amax_before;
}

// One element that grew alone accounts for what the sum of squares grew by.
bool one_element_did_it(const Case& c) {
  const ValueStats& before = c.birth.change->before.stats;
  const ValueStats& after = c.birth.source.stats;
  const bool summed = before.level >= StatsLevel::kSums && after.level >= StatsLevel::kSums;
  if (!c.birth.change->before.known || !summed) return false;
  if (after.nonfinite() - before.nonfinite() == 1) return true;
  const double square = after.amax * after.amax, grown = after.sum_sq - before.sum_sq;
  return after.nonfinite() == 0 && std::isfinite(square) && std::isfinite(grown) && after.amax > before.amax &&
         std::fabs(grown - square) <= 1e-3 * square + before.amax * before.amax;
}

// "the largest magnitude went from 0.12 to 2.1e37".
std::string change_text(const Case& c) {
  const ValueStats& after = c.birth.source.stats;
  if (c.birth.source.bad != 0) return bad_count_text(after.nan, after.pos_inf, after.neg_inf, after.numel);
  const double before = amax_before(c);
  if (before < 0 || !after.counted()) return "other numbers than before";
  const ValueStats& then = c.birth.change->before.stats;
  if (before == after.amax && c.birth.change->before.known && after.amin_nonzero < then.amin_nonzero)
    return fmt::format("the least magnitude went from {} to {}", number(then.amin_nonzero), number(after.amin_nonzero));
  if (before == after.amax) return "other numbers of the same size";
  return fmt::format("the largest magnitude went from {} to {}", number(before), number(after.amax));
}

}  // namespace

std::string home_text(const Case& c) {
  const StringId op = c.birth.at.op;
  const std::string& name = c.text(c.birth.source.name);
  if (op == kStateOp || op == kBatchOp) return sink_text(c.birth.role, name);
  if (op == kUnwatchedOp) return name.empty() ? "a tensor" : name;
  return fmt::format("the output of {}", place_text(c.birth.at, c.names));
}

std::string interval_text(const Case& c) {
  const Change& change = *c.birth.change;
  const bool read = change.reader.op != 0;
  const std::string reader =
      read ? place_in_step(change.reader, c.names) : fmt::format("a look in step {}", c.birth.at.step);
  if (change.since.seq != kNoSeq) return fmt::format("between {} and {}", place_in_step(change.since, c.names), reader);
  if (change.has_since) {
    return change.since_step == c.birth.at.step
               ? fmt::format("within step {}, before {}", change.since_step, reader)
               : fmt::format("between step {} and {}", change.since_step, reader);
  }
  return "before " + reader;
}

Diagnosis diagnose_change(const Case& c) {
  const Change& change = *c.birth.change;
  Diagnosis d;
  d.title = fmt::format("Contents of {} changed with nothing writing them: {}", home_text(c), change_text(c));
  d.explanation = fmt::format(
      "What was read is not what had been recorded, and no watched operation wrote it in between: {}. {}",
      interval_text(c),
      change.opaque ? "A call whose inside is not watched had the tensor in that time."
                    : "Faulty memory does this, and so does a write past the framework: through an array that shares "
                      "its memory, past the end of another tensor, or by a pointer that outlived its tensor.");
  if (change.before.known) d.evidence.push_back("Before: " + stats_text(change.before.stats) + ".");
  if (!change.before.known && change.amax_before >= 0)
    d.evidence.push_back(fmt::format("Before: largest magnitude {}.", number(change.amax_before)));
  d.evidence.push_back("After: " + stats_text(c.birth.source.stats) + ".");
  if (one_element_did_it(c))
    d.evidence.push_back("One element accounts for all of the change: a flipped bit of an exponent looks like this.");
  if (c.birth.harmful && c.birth.source.bad == 0) {
    const auto& first = c.birth.first_inf ? c.birth.first_inf : c.birth.first_nan;
    if (first) {
      d.evidence.push_back(
          fmt::format("Made of it, numbers first stopped being finite at {}.", place_in_step(*first, c.names)));
    }
  }
  // A flipped bit is one element's: many bad ones at once are most often some code's.
  const bool many = change.before.known && c.birth.source.stats.nonfinite() > change.before.stats.nonfinite() + 1;
  d.advice = change.opaque ? std::vector<std::string>{"watch-opaque-call"}
             : many        ? std::vector<std::string>{"find-stray-write", "check-memory"}
                           : std::vector<std::string>{"check-memory", "find-stray-write"};
  d.sure = change.before.known || c.birth.source.bad != 0;
  return d;
}

void add_harmless_changes(std::vector<Finding>& findings, const ValueGraph& graph, Names& names) {
  std::optional<Finding> small;
  for (const Birth* birth : graph.changes()) {
    if (birth->harmful || birth->lead != 0) continue;
    const Case c = make_case(*birth, names, {});
    const bool gross = birth->change->gross;
    // Parameters and state last: what changed in them stays, and training goes on from it.
    const bool told = gross || birth->at.op == kStateOp;
    if (!told && small) {
      ++small->occurrence_count;
      small->last_step = std::max(small->last_step, birth->at.step);
      continue;
    }
    Diagnosis d = diagnose_change(c);
    Finding f;
    f.cls = birth->change->opaque ? FindingClass::kUnseenKernel : FindingClass::kCorruption;
    f.severity = told ? Severity::kWarning : Severity::kInfo;
    f.confidence = d.sure && !birth->after_loss ? Confidence::kObserved : Confidence::kInferred;
    f.place = place_of(birth->at, names);
    f.first_step = f.last_step = birth->at.step;
    f.title = std::move(d.title);
    f.explanation = std::move(d.explanation) + (gross ? " Nothing that was watched stopped being finite because of it."
                                                      : " No harm was seen to come of it.");
    f.evidence = std::move(d.evidence);
    f.tensor = summarise(birth->source, "input", 0, names);
    f.bad_elements = birth->source.stats.nonfinite();
    for (const std::string& id : d.advice) f.advice.push_back(make_advice(id));
    const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& known) {
      return known.cls == f.cls && known.place.op == f.place.op && known.place.module == f.place.module &&
             known.severity <= f.severity && told;
    });
    if (same != findings.end()) {
      ++same->occurrence_count;
      same->last_step = std::max(same->last_step, f.last_step);
    } else if (told) {
      findings.push_back(std::move(f));
    } else {
      small = std::move(f);
    }
  }
  if (small) findings.push_back(std::move(*small));
}

}  // namespace nanhunt::analyze
