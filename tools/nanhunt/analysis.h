// SPDX-License-Identifier: Apache-2.0
// Analysing a run for a verb, with a word about damage, and leaving the report behind.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "nanhunt/analyzer.h"

namespace nanhunt::cli {

bool is_damaged(const Analysis& analysis);
// " (train.py:30)", the line of the program that called the operation; "" where it is not known. Fit for a terminal.
std::string call_site_text(const Finding& finding);
// "fault: overflow: mul in fc1 overflows fp16 (train.py:30), phase forward, step 3", fit for a terminal, without an end
// of line.
std::string verdict_line(const Analysis& analysis);
// analyze_run; says on stderr when the trace is damaged or a copy of one that was: what is lost, what holds, what next.
Result<Analysis> load_analysis(const std::string& run);

// Rows of a kind that a trace does not hold because nobody told them: what a loss scaler of the program's own did.
class RecognisedRows {
 public:
  explicit RecognisedRows(std::string_view kind);
  void add(const RecordBatch& batch);
  RecordBatch finish(const RunInfo& info, const TraceHealth& health);

 private:
  std::unique_ptr<Analyzer> analyzer_;  // nullptr: of another kind, or the trace has them
};

struct ReportFiles {
  std::string json, html;
};
// report.json and report.html in `folder`.
ReportFiles report_files(const std::string& folder);
Status write_reports(const Analysis& analysis, const ReportFiles& files);

}  // namespace nanhunt::cli
