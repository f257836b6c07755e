// SPDX-License-Identifier: Apache-2.0
#include "reports/views/report_model.h"

#include <algorithm>
#include <set>

#include "reports/views/finding_view.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

Lines sentences(const std::vector<std::string>& from, std::size_t limit) {
  Lines lines;
  for (std::size_t i = 0; i < from.size() && i < limit; ++i) lines.shown.push_back(clip(from[i], kSentenceLimit));
  lines.omitted = from.size() - lines.shown.size();
  return lines;
}

std::string run_line(const Analysis& analysis) {
  if (analysis.ranks.empty()) return "no run information";
  const RunInfo& info = analysis.ranks.front().info;
  std::vector<std::string> parts;
  if (!info.scenario.empty()) parts.push_back("scenario " + clip(info.scenario, kNameLimit));
  if (!info.framework.empty()) parts.push_back(clip(info.framework, kNameLimit));
  if (!info.device.empty()) parts.push_back(clip(info.device, kNameLimit));
  if (!info.dtypes.empty()) parts.push_back(clip(join(info.dtypes, ", "), kNameLimit));
  if (!info.level.empty()) parts.push_back("level " + clip(info.level, kNameLimit));
  parts.push_back("attempt " + std::to_string(analysis.ranks.front().attempt));
  if (const std::size_t ranks = rank_count(analysis); ranks > 1) parts.push_back(plural(ranks, "rank", "ranks"));
  return join(parts, " · ");
}

void add_fact(std::vector<Fact>& facts, std::string label, std::string value) {
  if (!value.empty()) facts.push_back({std::move(label), std::move(value)});
}

std::string shown_command(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) {
    if (!text.empty()) text += ' ';
    text += word;
    if (text.size() > kSentenceLimit) break;
  }
  return clip(text, kSentenceLimit);
}

RunView view_run(const RankSummary& rank, bool going) {
  RunView view;
  view.heading = "Rank " + std::to_string(rank.rank) + ", attempt " + std::to_string(rank.attempt);
  const RunInfo& info = rank.info;
  add_fact(view.facts, "Command", shown_command(info.command));
  add_fact(view.facts, "Scenario", clip(info.scenario, kNameLimit));
  add_fact(view.facts, "Framework", clip(info.framework, kNameLimit));
  add_fact(view.facts, "Recorded by",
           info.nanhunt_version.empty() ? "" : "nanhunt " + clip(info.nanhunt_version, kNameLimit));
  add_fact(view.facts, "Device", clip(info.device, kNameLimit));
  add_fact(view.facts, "Level", clip(info.level, kNameLimit));
  add_fact(view.facts, "Formats", clip(join(info.dtypes, ", "), kNameLimit));
  if (info.world_size > 1) add_fact(view.facts, "World size", format_count(info.world_size));
  std::string options;
  for (const auto& [name, value] : info.options) {
    if (options.size() > kSentenceLimit) break;
    options += (options.empty() ? "" : ", ") + name + "=" + value;
  }
  add_fact(view.facts, "Options", clip(options, kSentenceLimit));
  std::string packages;
  for (const auto& [name, version] : info.packages) {
    if (packages.size() > kSentenceLimit) break;
    packages += (packages.empty() ? "" : ", ") + name + " " + version;
  }
  add_fact(view.facts, "Packages", clip(packages, kSentenceLimit));
  if (!info.commit.empty())
    add_fact(view.facts, "Commit",
             clip(info.commit, kNameLimit) + (info.tree.empty() ? "" : ", tree " + clip(info.tree, kNameLimit)));
  add_fact(view.facts, "Started", clip(info.started, kNameLimit));
  add_fact(view.facts, "Trace",
           plural(rank.health.segments, "segment", "segments") + ", " + plural(rank.health.chunks, "chunk", "chunks") +
               ", " + plural(rank.health.rows, "row", "rows") + ", " + format_bytes(rank.health.bytes));
  add_fact(view.facts, "End",
           rank.health.clean_end ? "clean" : going ? "none: still going" : "none: still going, or killed");
  view.problems = sentences(rank.health.problems, kMaxCoverageLines / 4);
  return view;
}

void view_coverage(const Analysis& analysis, bool going, ReportModel& model) {
  const Coverage& c = analysis.coverage;
  const std::string level = analysis.ranks.empty() ? "" : analysis.ranks.front().info.level;
  const bool from_outside = level == "live" || level == "steps";
  model.watched = {{c.trained ? "Steps" : "Forwards, and nothing was trained", format_count(c.steps)}};
  if (!from_outside || c.ops != 0) {
    model.watched.push_back({from_outside ? "Operations of steps watched op by op" : "Operations", format_count(c.ops)});
    model.watched.push_back({"Tensor values", format_count(c.values)});
  }
  if (from_outside) {
    model.watched_how = "Level " + level + (c.trained ? ": the loss, the gradients and the loss scaler of every step" : ": what each forward gave") +
                        (level != "live" ? ", from outside." : c.trained ? "; operations as they ran, written where a step was bad."
                                                                         : "; operations as they ran, written where that was bad.");
    if (c.ops == 0 && level != "live") model.watched_how += " No step was watched operation by operation.";
  }
  model.unwatched = sentences(c.unwatched, kMaxCoverageLines);
  model.not_modelled = sentences(c.not_modelled, kMaxCoverageLines);
  Lines& losses = model.losses;
  // records_dropped has both: what the recorder could not keep, and what the file kept no longer.
  std::uint64_t in_damage = 0, skipped = 0;
  for (const RankSummary& rank : analysis.ranks) {
    in_damage += std::min(c.records_dropped - in_damage, rank.health.rows_lost);
    in_damage += std::min(c.records_dropped - in_damage, lost_before_salvage(rank.info).rows_lost);
    skipped += rank.health.bytes_skipped;
  }
  if (const std::uint64_t dropped = c.records_dropped - in_damage; dropped != 0) {
    losses.shown.push_back(plural(dropped, "record was", "records were") + " dropped while recording.");
  }
  if (in_damage != 0) {
    losses.shown.push_back(plural(in_damage, "record was", "records were") + " lost where the trace was damaged.");
  }
  if (c.chunks_lost != 0) {
    losses.shown.push_back(plural(c.chunks_lost, "chunk", "chunks") + " of the trace could not be read.");
  }
  if (skipped != 0) losses.shown.push_back(format_bytes(skipped) + " of the trace made no sense and were passed over.");
  if (!c.clean_end) {
    losses.shown.push_back(going ? "The run is still going: this tells of what was recorded so far."
                                 : "The trace has no clean end: the run is still going, or it was killed.");
  }
}

EpsRow view_eps(const EpsAuditRow& row) {
  EpsRow view;
  view.where = clip(row.where, kNameLimit);
  view.phase = phase_name(row.phase);
  view.eps = format_short(row.eps);
  view.dtype = dtype_name(row.dtype);
  view.stored = format_short(row.stored);
  view.verdict = clip(row.verdict, kNameLimit);
  view.uses = format_count(row.occurrences);
  view.zero_denominators = format_count(row.zero_denominators);
  view.bad = row.verdict != "ok";
  return view;
}

ExperimentView view_experiment(const ExperimentRecord& record) {
  ExperimentView view;
  view.description = clip(record.description.empty() ? record.fix : record.description, kNameLimit);
  view.verified = record.verified;
  view.outcome = record.verified ? "cured" : record.finite ? "finite, but not a cure" : "still not finite";
  view.trained = plural(record.further_steps, "step", "steps");
  view.loss = format_short(record.loss_before) + " → " + format_short(record.loss_after);
  view.factor = format_short(record.update_factor);
  return view;
}

}  // namespace

std::size_t rank_count(const Analysis& analysis) {
  std::set<std::uint32_t> ranks;
  for (const RankSummary& one : analysis.ranks) ranks.insert(one.rank);
  return ranks.size();
}

const Finding* find_origin(const Analysis& analysis) {
  if (analysis.verdict.origin) {
    for (const Finding& finding : analysis.findings) {
      if (finding.id == *analysis.verdict.origin) return &finding;
    }
  }
  const bool about_one =
      analysis.verdict.status == VerdictStatus::kFault || analysis.verdict.status == VerdictStatus::kWarning;
  return about_one && !analysis.findings.empty() ? &analysis.findings.front() : nullptr;
}

ReportModel make_report_model(const Analysis& analysis, const std::vector<std::uint32_t>& going) {
  ReportModel model;
  model.status = analysis.verdict.status;
  model.verdict_word = verdict_word(model.status);
  model.meaning = verdict_meaning(model.status);
  model.headline = clip(analysis.verdict.headline, kSentenceLimit);
  if (model.headline.empty()) model.headline = model.meaning;
  model.run_line = run_line(analysis);

  const Finding* origin = find_origin(analysis);
  const bool many_ranks =
      rank_count(analysis) > 1 || (!analysis.ranks.empty() && analysis.ranks[0].info.world_size > 1);
  if (origin != nullptr) model.origin = view_finding(*origin, many_ranks);
  for (const Finding& finding : analysis.findings) {
    if (&finding == origin) continue;
    if (model.others.size() < kMaxFindingsShown) {
      model.others.push_back(view_finding(finding, many_ranks));
    } else {
      ++model.findings_omitted;
    }
  }
  // The rows that tell something come first.
  std::vector<const EpsAuditRow*> eps;
  eps.reserve(analysis.eps_audit.size());
  for (const EpsAuditRow& row : analysis.eps_audit) eps.push_back(&row);
  std::stable_partition(eps.begin(), eps.end(), [](const EpsAuditRow* row) { return row->verdict != "ok"; });
  for (std::size_t i = 0; i < eps.size() && i < kMaxEpsRows; ++i) model.eps_audit.push_back(view_eps(*eps[i]));
  model.eps_omitted = eps.size() - model.eps_audit.size();

  for (std::size_t i = 0; i < analysis.experiments.size() && i < kMaxExperiments; ++i) {
    model.experiments.push_back(view_experiment(analysis.experiments[i]));
  }
  model.experiments_omitted = analysis.experiments.size() - model.experiments.size();

  model.scaler_answer = scaler_sentence(analysis, origin);
  model.scaler = view_scaler(analysis);
  if (analysis.shown_rank) model.of_rank = ", rank " + std::to_string(*analysis.shown_rank);
  model.layers = view_layers(analysis);
  model.layers_omitted = analysis.layers_omitted + (analysis.layers.size() - model.layers.size());

  if (analysis.lr_ramp) model.lr_ramp = view_lr_ramp(*analysis.lr_ramp);
  if (analysis.device_time) model.device_time = view_device_time(*analysis.device_time, many_ranks);

  view_coverage(analysis, !going.empty(), model);
  for (std::size_t i = 0; i < analysis.ranks.size() && i < kMaxRanks; ++i) {
    const RankSummary& rank = analysis.ranks[i];
    model.runs.push_back(view_run(rank, std::ranges::find(going, rank.rank) != going.end()));
  }
  model.runs_omitted = analysis.ranks.size() - model.runs.size();
  return model;
}

}  // namespace nanhunt::reports
