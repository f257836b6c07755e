// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/analysis.h"

#include <algorithm>
#include <filesystem>

#include "nanhunt/reporter.h"
#include "nanhunt/trace.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "src/core/text.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

// A copy of a damaged trace is whole itself; what it was made from was not.
bool is_damaged(const Analysis& analysis) {
  return analysis.coverage.chunks_lost != 0 ||
         std::any_of(analysis.ranks.begin(), analysis.ranks.end(),
                     [](const RankSummary& r) { return r.health.damaged() || lost_before_salvage(r.info).damaged(); });
}

std::string call_site_text(const Finding& finding) {
  return finding.call_site.empty() ? "" : " (" + reports::clip(finding.call_site, reports::kNameLimit) + ")";
}

namespace {

// "rank 2", "ranks 0, 1 and 3".
std::string ranks_of(const Finding& f) {
  constexpr std::size_t kMost = 8;
  const std::size_t many = std::min(f.ranks.size(), kMost);
  std::string text = f.ranks.size() > 1 ? "ranks " : "rank ";
  for (std::size_t i = 0; i < many; ++i) {
    const bool last = i + 1 == f.ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(f.ranks[i]);
  }
  if (f.ranks.size() > kMost) text += " and " + std::to_string(f.ranks.size() - kMost) + " more";
  return text;
}

}  // namespace

std::string verdict_line(const Analysis& analysis) {
  std::string line(verdict_status_name(analysis.verdict.status));
  if (is_damaged(analysis)) {
    line += analysis.coverage.clean_end ? " (damaged trace)" : " (damaged trace, no clean end)";
  } else if (!analysis.coverage.clean_end && analysis.verdict.status != VerdictStatus::kClean) {  // its headline says it
    line += " (no clean end: still going, or killed)";
  }
  line += ": ";
  const std::string headline = printable(analysis.verdict.headline);
  const Finding* f = reports::find_origin(analysis);
  if (f == nullptr) return line + headline;
  line += std::string(finding_class_name(f->cls)) + ": " + headline + call_site_text(*f) + ", phase " +
          std::string(phase_name(f->place.phase)) + ", step " + std::to_string(f->place.step) +
          (f->trained ? "" : std::string(reports::kOfForward));
  return analysis.ranks.size() > 1 ? line + ", " + ranks_of(*f) : line;
}

namespace {

// What is lost, what holds, and the one next step.
void say_damage(const Analysis& analysis, const std::string& run) {
  TraceHealth lost;
  bool copy = true;
  std::uint64_t before = 0;
  for (const RankSummary& rank : analysis.ranks) {
    const TraceHealth earlier = lost_before_salvage(rank.info);
    for (const TraceHealth* one : {&rank.health, &earlier}) {
      lost.chunks_lost += one->chunks_lost;
      lost.rows_lost += one->rows_lost;
      lost.bytes_skipped += one->bytes_skipped;
    }
    copy = copy && !rank.health.damaged();
    before += earlier.chunks_lost;
  }
  // A rank of which nothing could be read counts there as well.
  copy = copy && before >= analysis.coverage.chunks_lost;
  lost.chunks_lost = std::max(lost.chunks_lost, analysis.coverage.chunks_lost);
  say((copy ? "this is the salvaged copy of a damaged trace: " : "the trace is damaged: ") + describe_damage(lost) +
      ". What it shows was recorded so; where it shows no fault, that holds for what is left alone. " +
      (copy ? "Next: for a whole verdict train again, and copy the run folder once the program has ended."
            : "Next: `nanhunt doctor " + shell_word(run) + "` lists the places and can salvage the rest."));
}

}  // namespace

Result<Analysis> load_analysis(const std::string& run) {
  auto analysis = analyze_run(run);
  if (analysis && is_damaged(*analysis)) say_damage(*analysis, run);
  return analysis;
}

ReportFiles report_files(const std::string& folder) {
  const std::filesystem::path path = folder;
  return {(path / "report.json").string(), (path / "report.html").string()};
}

Status write_reports(const Analysis& analysis, const ReportFiles& files) {
  if (Status written = replace_file(files.json, render_json(analysis)); !written) return written;
  return replace_file(files.html, render_html(analysis));
}

RecognisedRows::RecognisedRows(std::string_view kind) : analyzer_(kind == "scaler" ? Analyzer::make({}) : nullptr) {}

void RecognisedRows::add(const RecordBatch& batch) {
  if (!batch.scaler.empty()) analyzer_.reset();  // they are told: nothing is to be recognised
  if (analyzer_ != nullptr) analyzer_->add(batch);
}

RecordBatch RecognisedRows::finish(const RunInfo& info, const TraceHealth& health) {
  RecordBatch own;
  if (analyzer_ == nullptr) return own;
  const Analysis analysis = analyzer_->finish(info, health);
  if (!analysis.scaler) return own;
  for (const ScalerSection::Point& point : analysis.scaler->points) {
    ScalerRecord& row = own.scaler.emplace_back();
    row.step = point.step;
    row.scale = point.scale;
    row.action = point.skipped ? ScalerAction::kSkip : ScalerAction::kStep;
    row.found_inf = point.skipped;
    row.dynamic = analysis.scaler->dynamic;
  }
  return own;
}

}  // namespace nanhunt::cli
