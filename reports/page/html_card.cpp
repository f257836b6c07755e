// SPDX-License-Identifier: Apache-2.0
// Implements render_card of nanhunt/reporter.h: a piece of a notebook's own document, so its style is named apart, takes the
// notebook's colours, and nothing of it runs or asks for anything.
#include <optional>
#include <string>

#include "nanhunt/reporter.h"
#include "reports/page/html_chart.h"
#include "reports/page/html_finding.h"
#include "reports/page/html_writer.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/views/timeline_view.h"
#include "src/core/text.h"

namespace nanhunt {
namespace {

using namespace reports;

void write_style(HtmlWriter& out) {
  out.markup(
      "<style>"
      ".nanhunt-card{border:1px solid #8886;border-top:5px solid #2f6fad;border-radius:8px;padding:10px 18px 12px;max-width:1000px;"
      "font:14px/1.5 system-ui,sans-serif;color:inherit;overflow-wrap:anywhere}"
      ".nanhunt-card.fault{border-top-color:#d0453d}.nanhunt-card.warning{border-top-color:#b98217}"
      ".nanhunt-card.clean{border-top-color:#2f8f52}"
      ".nanhunt-card p{margin:4px 0}.nanhunt-card figure{margin:0}"
      ".nanhunt-card .head{font-size:17px;font-weight:650}"
      ".nanhunt-card .both{display:flex;flex-wrap:wrap;gap:6px 24px;align-items:flex-start}"
      ".nanhunt-card .where,.nanhunt-card .curve{flex:1 1 360px;min-width:0}"
      ".nanhunt-card code{font-family:ui-monospace,monospace;font-size:13px;background:none;color:inherit;padding:0}"
      ".nanhunt-card .source{list-style:none;margin:6px 0;padding:8px 10px;border-radius:6px;background:#8882}"
      ".nanhunt-card .source li{white-space:pre-wrap;margin:0}"
      ".nanhunt-card .number{font:13px ui-monospace,monospace;opacity:.7;margin-right:12px}.nanhunt-card .here{font-weight:700}"
      ".nanhunt-card .alarm,.nanhunt-card .equation .alarm{font-weight:700}"
      ".nanhunt-card .quiet{opacity:.75;font-size:13px}"
      ".nanhunt-card svg{display:block;width:100%;max-width:520px;height:auto}"
      ".nanhunt-card text{font:12.5px system-ui,sans-serif;fill:currentColor}"
      ".nanhunt-card .grid{stroke:#8884}.nanhunt-card .loss{fill:none;stroke:#3d84c6;stroke-width:2}"
      ".nanhunt-card .dot{fill:#3d84c6}.nanhunt-card .mark{fill:none;stroke:#d0453d;stroke-width:2.2}"
      ".nanhunt-card .mark.fill{fill:#d0453d;stroke-width:0}.nanhunt-card .mark.skip{stroke:#b98217}"
      ".nanhunt-card .origin{stroke:#d0453d;stroke-width:1.5;stroke-dasharray:5 4}"
      ".nanhunt-card .origin-name text{font-weight:650}"
      "</style>");
}

void open_card(HtmlWriter& out, VerdictStatus status) {
  switch (status) {
    case VerdictStatus::kFault:
      out.markup("<div class=\"nanhunt-card fault\">");
      break;
    case VerdictStatus::kWarning:
    case VerdictStatus::kInconclusive:
      out.markup("<div class=\"nanhunt-card warning\">");
      break;
    case VerdictStatus::kClean:
    case VerdictStatus::kCalibrating:
      out.markup("<div class=\"nanhunt-card clean\">");
      break;
  }
}

}  // namespace

std::string render_card(const Analysis& analysis, const TextOptions& options) {
  const ReportModel model = make_report_model(analysis, options.going);
  const TimelineView timeline = make_timeline_view(analysis);
  const Finding* origin = find_origin(analysis);
  HtmlWriter out;
  open_card(out, model.status);
  write_style(out);
  out.markup("<p class=\"head\">").text(model.verdict_word + ": " + model.headline).markup("</p>");
  if (model.origin) write_cure(out, *model.origin);
  out.markup("<div class=\"both\">");
  if (model.origin) {
    write_where(out, *model.origin);
  } else {
    out.markup("<div class=\"where\">");
    if (model.meaning != model.headline) out.element("p", "", model.meaning);
    for (const Fact& fact : model.watched) out.element("p", "", fact.label + ": " + fact.value);
    out.markup("</div>");
  }
  if (!timeline.empty()) {
    out.markup("<figure class=\"curve\">");
    const auto step = origin != nullptr ? std::optional(origin->place.step) : std::nullopt;
    write_loss_chart(out, timeline, {.id = "nanhunt-loss", .origin = step, .small = true});
    out.markup("</figure>");
  }
  out.markup("</div>");
  for (const std::string& line : model.losses.shown) out.element("p", "quiet", line);
  out.markup("<p class=\"quiet\">All of it: <code>");
  out.text("nanhunt report " + shell_word(printable(options.run)) + " --open").markup("</code></p></div>");
  return out.take();
}

}  // namespace nanhunt
