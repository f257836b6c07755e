// SPDX-License-Identifier: Apache-2.0
// One finding as HTML: in full for the one the verdict is about, folded for the others.
#pragma once

#include "reports/html_writer.h"
#include "reports/report_model.h"

namespace nanhunt::reports {

// Opens and closes one part of the page: a heading beside its content.
void begin_part(HtmlWriter& out, std::string_view id, std::string_view title);
void end_part(HtmlWriter& out);

void write_severity(HtmlWriter& out, Severity severity, std::string_view word);
void write_list(HtmlWriter& out, const Lines& lines);
void write_and_more(HtmlWriter& out, std::uint64_t omitted);
void write_facts(HtmlWriter& out, const std::vector<Fact>& facts);

// The answers to which operation, layer, phase, step, why, does it matter, what cured it.
void write_answers(HtmlWriter& out, const FindingView& finding);
// Why, what happened, numbers, what to do: one part of the page each.
void write_finding_parts(HtmlWriter& out, const FindingView& finding);
// Folded; shorter lists.
void write_other_finding(HtmlWriter& out, const FindingView& finding);

}  // namespace nanhunt::reports
