// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "src/analyze/findings/aftermath.h"
#include "src/analyze/findings/ignored.h"
#include "src/analyze/findings/own_lines.h"
#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::string watched_text(const Coverage& coverage) {
  const std::string steps = count_of(static_cast<std::int64_t>(coverage.steps), coverage.trained ? "step" : "forward");
  if (coverage.ops == 0) return steps;  // level steps
  return fmt::format("{} and {}", steps, count_of(static_cast<std::int64_t>(coverage.ops), "op"));
}

// Where a finding stands among those of equal weight. A collapse has its own moment, whatever lies underneath.
std::uint32_t order_step(const Finding& f) {
  return f.cls == FindingClass::kScalerCollapse ? f.first_step : began(f);
}

bool is_scaled(const Finding& f) { return f.cls == FindingClass::kScalerCalibration; }

// Losses that leave every number finite have no step of their own: a run may bear them from its start and still break
// because of something else.
bool is_silent_loss(const Finding& f) {
  return f.cls == FindingClass::kUpdateLoss ||
         ((f.cls == FindingClass::kUnderflow || f.cls == FindingClass::kEpsUnderflow) && f.sinks.empty());
}

// How precision is set up: nothing has come of it that was seen.
bool is_of_setup(const Finding& f) {
  return f.cls == FindingClass::kApiMisuse && f.severity == Severity::kWarning && f.place.seq == kNoSeq;
}

// Ranks share one scale: its collapse is told by the rank that knows what was underneath.
void drop_hollow_collapses(std::vector<Finding>& findings) {
  const auto collapse = [](const Finding& f) { return f.cls == FindingClass::kScalerCollapse; };
  const bool known =
      std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return collapse(f) && f.place.op; });
  if (known) std::erase_if(findings, [&](const Finding& f) { return collapse(f) && !f.place.op; });
}

// The same happened on several ranks, each by itself: one finding that names them all, with the numbers of the lowest.
void fold_equal(std::vector<Finding>& findings) {
  const auto key = [](const Finding& f) {
    return std::tuple(f.cls, f.severity, f.benign, f.place.phase, f.place.step, order_step(f), f.place.op.value_or(""),
                      f.place.module.value_or(""), f.call_site);
  };
  std::map<decltype(key(findings.front())), std::size_t> first;
  std::map<std::size_t, std::size_t> titles;  // other words than the first rank's, by index in `kept`
  std::vector<Finding> kept;
  for (Finding& f : findings) {
    const auto [it, added] = first.try_emplace(key(f), kept.size());
    const bool same_rank = !added && std::find(kept[it->second].ranks.begin(), kept[it->second].ranks.end(), f.rank) !=
                                         kept[it->second].ranks.end();
    if (added || same_rank) {
      kept.push_back(std::move(f));
      continue;
    }
    Finding& lead = kept[it->second];
    for (const std::uint32_t rank : f.ranks) {
      if (std::find(lead.ranks.begin(), lead.ranks.end(), rank) == lead.ranks.end()) lead.ranks.push_back(rank);
    }
    std::sort(lead.ranks.begin(), lead.ranks.end());
    lead.occurrence_count = std::max(lead.occurrence_count, f.occurrence_count);
    lead.last_step = std::max(lead.last_step, f.last_step);
    if (f.bad_steps.count > lead.bad_steps.count) lead.bad_steps = f.bad_steps;  // of the rank that bore it longest
    lead.confidence = std::max(lead.confidence, f.confidence);
    constexpr std::size_t kMaxTitles = 8;
    if (f.title != lead.title && ++titles[it->second] <= kMaxTitles)
      lead.evidence.push_back(fmt::format("On rank {}: {}.", f.rank, f.title));
    for (const RankPropagation& propagation : f.rank_propagation) {
      if (std::find(lead.rank_propagation.begin(), lead.rank_propagation.end(), propagation) == lead.rank_propagation.end())
        lead.rank_propagation.push_back(propagation);
    }
    for (std::string& sink : f.sinks) {
      if (std::find(lead.sinks.begin(), lead.sinks.end(), sink) == lead.sinks.end() && lead.sinks.size() < 256)
        lead.sinks.push_back(std::move(sink));
    }
    for (const std::int64_t sample : f.samples) {
      if (std::find(lead.samples.begin(), lead.samples.end(), sample) == lead.samples.end() &&
          lead.samples.size() < 65536)
        lead.samples.push_back(sample);
    }
  }
  for (Finding& f : kept) {
    if (f.ranks.size() > 1 && f.cls != FindingClass::kComm)
      f.evidence.push_back(fmt::format("The same on {}, each by itself; the numbers here are those of rank {}.",
                                       ranks_text(f.ranks), f.rank));
  }
  findings = std::move(kept);
}

constexpr std::size_t kMaxRelated = 64;  // of one finding

// Is the origin of `other` an op that the badness of `lead` passed?
bool lies_on_chain(const Finding& other, const Finding& lead) {
  if (other.place.seq == kNoSeq || other.rank != lead.rank) return false;
  return std::any_of(lead.chain.nodes.begin(), lead.chain.nodes.end(),
                     [&](const ChainNode& node) { return node.role != "origin" && node.seq == other.place.seq; });
}

// Would a reader look for one cause? What one line of the program made in one step, or what lies along one chain.
bool of_one_cause(const Finding& lead, const Finding& other) {
  if (other.severity == Severity::kInfo || lead.severity == Severity::kInfo || is_scaled(other) || is_scaled(lead))
    return false;
  const bool same_line = !lead.call_site.empty() && lead.call_site == other.call_site && lead.rank == other.rank &&
                         lead.place.step == other.place.step;
  return same_line || lies_on_chain(other, lead);
}

// The first keeps its numbers; the others are named under it.
void fold_related(std::vector<Finding>& findings) {
  std::vector<Finding> kept;
  for (Finding& f : findings) {
    const auto lead = std::find_if(kept.begin(), kept.end(), [&](const Finding& one) { return of_one_cause(one, f); });
    if (lead == kept.end()) {
      kept.push_back(std::move(f));
      continue;
    }
    if (f.bad_steps.count > lead->bad_steps.count) {  // the way that lasted: into the weights, say
      const std::uint32_t first = lead->bad_steps.count == 0 ? f.bad_steps.first : lead->bad_steps.first;
      lead->bad_steps = f.bad_steps;
      lead->bad_steps.first = std::min(first, f.bad_steps.first);
    }
    if (lead->related.size() < kMaxRelated) {
      lead->related.push_back({f.cls, f.severity, f.place, own_line(f, findings), f.title});
    } else {
      ++lead->related_omitted;
    }
    for (std::string& sink : f.sinks) {
      if (std::find(lead->sinks.begin(), lead->sinks.end(), sink) == lead->sinks.end() && lead->sinks.size() < 256)
        lead->sinks.push_back(std::move(sink));
    }
    for (const Advice& advice : f.advice) {
      const bool known = std::any_of(lead->advice.begin(), lead->advice.end(),
                                     [&](const Advice& one) { return one.id == advice.id; });
      if (!known && lead->advice.size() < 8) lead->advice.push_back(advice);
    }
  }
  findings = std::move(kept);
}

// Findings that one line of the program called: their cause may be one.
void tell_shared_lines(std::vector<Finding>& findings) {
  std::map<std::string, std::string> lines;  // id of the first finding
  for (Finding& f : findings) {
    if (f.call_site.empty() || f.severity == Severity::kInfo) continue;
    const auto [first, added] = lines.try_emplace(f.call_site, f.id);
    if (!added) f.same_line_as = first->second;
  }
}

// A note of the run, and how often it was made. Some count what they are about.
std::string note_text(const std::string& text, std::uint64_t count) {
  constexpr std::string_view kLeftOut = "operations of further bad steps";  // as hooks/torch/nanhunt/_steps/bad_steps.py
  if (!text.starts_with(kLeftOut)) return fmt::format("{} ({})", text, count);
  return fmt::format("{} {} not kept op by op.", count_of(static_cast<std::int64_t>(count), "later bad step"),
                     count == 1 ? "was" : "were");
}

}  // namespace

void conclude(Analysis& analysis, const AnalyzeOptions& options) {
  std::vector<Finding>& findings = analysis.findings;
  tell_ignored(findings, analysis.coverage);
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tuple(-static_cast<int>(a.severity), is_of_setup(a), is_silent_loss(a), order_step(a), a.rank) <
           std::tuple(-static_cast<int>(b.severity), is_of_setup(b), is_silent_loss(b), order_step(b), b.rank);
  });
  fold_related(findings);
  const std::size_t limit = std::max<std::size_t>(1, options.max_findings);
  if (findings.size() > limit) {
    analysis.coverage.unwatched.push_back(
        fmt::format("{} more findings were left out of this report.", findings.size() - limit));
    findings.resize(limit);
  }
  for (Finding& f : findings) {
    if (f.attempt) f.evidence.push_back(fmt::format("In another process of this run: attempt {} of rank {}.", *f.attempt, f.rank));
  }
  for (std::size_t i = 0; i < findings.size(); ++i) findings[i].id = fmt::format("F{}", i + 1);
  tell_shared_lines(findings);
  lead_to_own_lines(findings);
  for (const auto& [text, count] : analysis.coverage.notes) analysis.coverage.unwatched.push_back(note_text(text, count));

  Verdict& verdict = analysis.verdict;
  verdict = Verdict{};
  const Coverage& coverage = analysis.coverage;
  const bool parts_missing = coverage.chunks_lost > 0 || coverage.records_dropped > 0;
  const Severity worst = findings.empty() ? Severity::kInfo : findings.front().severity;
  if (worst != Severity::kInfo) {
    verdict.status = worst == Severity::kFault ? VerdictStatus::kFault : VerdictStatus::kWarning;
    verdict.headline = findings.front().title;
    verdict.origin = findings.front().id;
  } else if (coverage.steps == 0) {
    verdict.status = VerdictStatus::kInconclusive;
    verdict.headline = parts_missing       ? "The trace lost records, and nothing that is left of it can be judged"
                       : coverage.ops == 0 ? "Nothing was recorded, so nothing can be said"
                                           : "No training step was seen, so none was judged";
  } else if (!coverage.unjudged.empty()) {
    verdict.status = VerdictStatus::kInconclusive;
    verdict.headline = fmt::format("Nothing harmful was seen in {}, but {}", watched_text(coverage), coverage.unjudged);
  } else if (const auto scaled = std::find_if(findings.begin(), findings.end(), is_scaled); scaled != findings.end()) {
    // A streak that has not ended weighs more than one that has.
    const auto open = std::find_if(findings.begin(), findings.end(),
                                   [](const Finding& f) { return is_scaled(f) && !f.benign; });
    verdict.status = open != findings.end() ? VerdictStatus::kInconclusive : VerdictStatus::kCalibrating;
    const Finding& told = open != findings.end() ? *open : *scaled;
    verdict.headline = told.title;
    verdict.origin = told.id;
  } else {
    verdict.status = VerdictStatus::kClean;
    const std::string harm = ignored_harm(findings);
    verdict.headline = fmt::format("No harmful NaN or Inf in {}{}{}{}", watched_text(coverage),
                                   coverage.clean_end ? "" : " so far: the run has not ended",
                                   harm.empty() ? "" : " but what the user ignores: " + harm,
                                   parts_missing ? "; parts of the trace are missing" : "");
  }
  if (!coverage.exception.empty() && worst == Severity::kInfo)
    verdict.headline += fmt::format("; the program ended with an exception: \"{}\"", coverage.exception);
}

void doubt(std::vector<Analysis>& ranks) {
  for (Analysis& one : ranks) {
    for (Finding& f : one.findings) f.confidence = Confidence::kInferred;
  }
}

namespace {

// The rank on which the worst of it began first. Findings of a rank are in order.
Analysis& leading(std::vector<Analysis>& ranks) {
  const auto worth = [](const Analysis& one) {
    std::pair<int, std::uint32_t> best{1, 0};
    for (const Finding& f : one.findings) best = std::min(best, {-static_cast<int>(f.severity), began(f)});
    return best;
  };
  return *std::min_element(ranks.begin(), ranks.end(),
                           [&](const Analysis& a, const Analysis& b) { return worth(a) < worth(b); });
}

// What is shown of one rank alone.
void show(Analysis& all, Analysis& one) {
  if (all.timeline.empty() && all.layers.empty() && !one.ranks.empty()) all.shown_rank = one.ranks.front().rank;
  if (!all.scaler) all.scaler = std::move(one.scaler);  // ranks share one scale
  if (all.layers.empty()) {
    all.layers = std::move(one.layers);
    all.layers_omitted = one.layers_omitted;
    all.layer_map = std::move(one.layer_map);
  }
  if (!all.lr_ramp) all.lr_ramp = std::move(one.lr_ramp);
  if (!all.device_time) all.device_time = std::move(one.device_time);
  if (all.timeline.empty()) {
    all.timeline = std::move(one.timeline);
    all.timeline_omitted = one.timeline_omitted;
  }
}

}  // namespace

Analysis merge_ranks(std::vector<Analysis> ranks, const AnalyzeOptions& options) {
  if (ranks.size() == 1) {
    Analysis one = std::move(ranks.front());
    conclude(one, options);
    return one;
  }
  Analysis all;
  show(all, leading(ranks));
  auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  auto append_new = [](std::vector<std::string>& to, const std::vector<std::string>& from) {
    for (const std::string& text : from) {
      if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(text);
    }
  };
  all.coverage.trained =
      std::any_of(ranks.begin(), ranks.end(), [](const Analysis& one) { return one.coverage.trained; });
  for (Analysis& one : ranks) {
    // Ranks take the same steps. Forwards of a process that trains nothing are none of those that train.
    if (one.coverage.trained == all.coverage.trained) all.coverage.steps = std::max(all.coverage.steps, one.coverage.steps);
    all.coverage.ops += one.coverage.ops;
    all.coverage.values += one.coverage.values;
    all.coverage.records_dropped += one.coverage.records_dropped;
    all.coverage.chunks_lost += one.coverage.chunks_lost;
    all.coverage.clean_end = all.coverage.clean_end && one.coverage.clean_end;
    if (all.coverage.exception.empty()) all.coverage.exception = one.coverage.exception;
    if (all.coverage.unjudged.empty() && !one.coverage.unjudged.empty()) {
      const std::string on = one.ranks.empty() ? "" : fmt::format("on rank {} ", one.ranks.front().rank);
      all.coverage.unjudged = on + one.coverage.unjudged;
    }
    append_new(all.coverage.unwatched, one.coverage.unwatched);
    for (const auto& [text, count] : one.coverage.notes) all.coverage.notes[text] += count;
    append_new(all.coverage.not_modelled, one.coverage.not_modelled);
    append(all.ranks, one.ranks);
    append(all.findings, one.findings);
    append(all.eps_audit, one.eps_audit);
    append(all.update_loss, one.update_loss);
    append(all.experiments, one.experiments);
    show(all, one);
  }
  drop_hollow_collapses(all.findings);
  fold_equal(all.findings);
  join_handed_on(all.findings);
  conclude(all, options);
  return all;
}

}  // namespace nanhunt::analyze
