// SPDX-License-Identifier: Apache-2.0
// One finding as HTML: in full for the one the verdict is about, folded for the others.
#pragma once

#include "reports/page/html_writer.h"
#include "reports/views/magnitudes.h"
#include "reports/views/report_model.h"

namespace nanhunt::reports {

// Opens and closes one part of the page: a heading beside its content.
void begin_part(HtmlWriter& out, std::string_view id, std::string_view title);
void begin_wide_part(HtmlWriter& out, std::string_view id, std::string_view title);  // the heading above
void end_part(HtmlWriter& out);

void write_severity(HtmlWriter& out, Severity severity, std::string_view word);
void write_list(HtmlWriter& out, const Lines& lines);
void write_and_more(HtmlWriter& out, std::uint64_t omitted);
void write_facts(HtmlWriter& out, const std::vector<Fact>& facts);

// What cures it, and whether that was tried.
void write_cure(HtmlWriter& out, const FindingView& finding);
// The lines of code and the numbers that met there, for the first screen.
void write_where(HtmlWriter& out, const FindingView& finding);
// The answers to which operation, layer, phase, step, why, is it the scaler (unless empty), does it matter, how sure.
void write_answers(HtmlWriter& out, const FindingView& finding, std::string_view scaler_answer);
// Why, what to do, what happened, numbers: one part of the page each.
void write_finding_parts(HtmlWriter& out, const FindingView& finding, const MagnitudeView& magnitudes);
// Folded; shorter lists.
void write_other_finding(HtmlWriter& out, const FindingView& finding);

}  // namespace nanhunt::reports
