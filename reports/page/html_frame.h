// SPDX-License-Identifier: Apache-2.0
// A whole page around its parts: html/page.html with style, scripts and a policy that lets exactly these through.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "nanhunt/analyzer.h"
#include "reports/page/html_writer.h"

namespace nanhunt::reports {

// Bytes that style and scripts take on every page.
std::size_t frame_bytes();
// The section of the verdict up to the word of its status: the word, </p> and the headline follow.
void open_verdict(HtmlWriter& out, VerdictStatus status);
// `made_from`: the first sentence of the footer, without its end: "from the recorded trace alone".
void write_footer(HtmlWriter& out, std::string_view made_from);
// `title` is text. `body` is markup as an HtmlWriter gives it. `data` is what the scripts draw, as escape_for_script
// gives it, or nothing.
std::string fill_page(std::string_view title, std::string_view body, std::string_view data);

}  // namespace nanhunt::reports
