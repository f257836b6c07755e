// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_frame.h"

#include <utility>
#include <vector>

#include "reports/page/html_page.h"
#include "src/core/version.h"

namespace nanhunt::reports {
namespace {

// Replaces the names in the template, each once, never looking at what was put in.
std::string fill_template(std::string_view page,
                          const std::vector<std::pair<std::string_view, std::string_view>>& slots) {
  std::string out;
  for (const auto& [name, content] : slots) {
    const std::size_t at = page.find(name);
    if (at == std::string_view::npos) continue;
    out += page.substr(0, at);
    out += content;
    page.remove_prefix(at + name.size());
  }
  out += page;
  return out;
}

// Data and scripts of the charts; nothing where the charts could not be bundled.
std::string scripts_with(std::string_view data) {
  if (kPageScript.empty()) return "";
  std::string out;
  if (!data.empty()) {
    out += "<script type=\"application/json\" id=\"page-data\">";
    out += data;
    out += "</script>\n";
  }
  out += "<script>";
  out += kPageScript;
  return out + "</script>\n";
}

}  // namespace

std::size_t frame_bytes() { return kPageScript.size() + kPageStyle.size(); }

void open_verdict(HtmlWriter& out, VerdictStatus status) {
  switch (status) {
    case VerdictStatus::kFault:
      out.markup(
          "<section id=\"verdict\" class=\"verdict fault\" aria-labelledby=\"headline\"><p class=\"status\"><span "
          "aria-hidden=\"true\">■</span> ");
      break;
    case VerdictStatus::kWarning:
      out.markup(
          "<section id=\"verdict\" class=\"verdict warning\" aria-labelledby=\"headline\"><p class=\"status\"><span "
          "aria-hidden=\"true\">▲</span> ");
      break;
    case VerdictStatus::kInconclusive:
      out.markup(
          "<section id=\"verdict\" class=\"verdict unsure\" aria-labelledby=\"headline\"><p class=\"status\"><span "
          "aria-hidden=\"true\">◆</span> ");
      break;
    case VerdictStatus::kClean:
    case VerdictStatus::kCalibrating:
      out.markup(
          "<section id=\"verdict\" class=\"verdict clean\" aria-labelledby=\"headline\"><p class=\"status\"><span "
          "aria-hidden=\"true\">●</span> ");
      break;
  }
}

void write_footer(HtmlWriter& out, std::string_view made_from) {
  out.markup("<footer><p>Made by nanhunt ").text(version()).markup(" ").text(made_from).markup(". ");
  if (kPageScript.empty()) {
    out.markup("This page holds no script and asks for nothing from any network.</p></footer>");
  } else {
    out.markup(
        "This page asks for nothing from any network. Its charts are drawn with uPlot and dagre, whose licences stand "
        "at "
        "the end of its source.</p></footer>");
  }
}

std::string fill_page(std::string_view title, std::string_view body, std::string_view data) {
  const std::string escaped = escape_html(title), scripts = scripts_with(data);
  std::string policy;
  if (!kPageScript.empty()) policy = "script-src '" + std::string(kPageScriptHash) + "'; ";
  policy += "style-src '" + std::string(kPageStyleHash) + "'";
  return fill_template(kPageTemplate, {{"{{policy}}", policy},
                                       {"{{title}}", escaped},
                                       {"{{style}}", kPageStyle},
                                       {"{{body}}", body},
                                       {"{{scripts}}", scripts}});
}

}  // namespace nanhunt::reports
