// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_layers.h"

#include "reports/page/html_finding.h"

namespace nanhunt::reports {
namespace {

void write_side(HtmlWriter& out, const LayerSide& side) {
  out.element("td", side.went_bad == "—" ? "num" : "num alarm", side.went_bad).element("td", "num", side.amax).element("td", "num", side.headroom).element("td", "num", side.underflow);
}

void write_layer(HtmlWriter& out, const LayerRow& row) {
  if (row.bad) {
    out.markup("<tr class=\"bad\">");
  } else {
    out.markup("<tr>");
  }
  out.markup("<th scope=\"row\"><code>").text(row.module).markup("</code></th>").element("td", "", row.dtype);
  out.element("td", "num", row.operations).element("td", row.bad ? "num alarm" : "num", row.bad_operations);
  out.element("td", row.nan != "0" ? "num alarm" : "num", row.nan);
  out.element("td", row.inf != "0" ? "num alarm" : "num", row.inf);
  write_side(out, row.forward);
  write_side(out, row.gradient);
  out.markup("</tr>");
}

}  // namespace

std::size_t write_layers(HtmlWriter& out, const ReportModel& model, std::size_t stop_at) {
  if (model.layers.empty()) return 0;
  begin_wide_part(out, "layers", "Layers" + model.of_rank);
  out.markup(
      "<p>How near each layer came to the edges of its number format. Headroom counts how often the largest number "
      "could double before it overflows; underflow is the share of elements lost to zero or subnormal.</p>"
      "<div class=\"scroll tall\" role=\"region\" aria-label=\"Table of layers\" tabindex=\"0\">"
      "<table id=\"layer-table\"><caption>Layers over the whole run: who went bad first on top, then in order of "
      "appearance</caption><thead>"
      "<tr><td colspan=\"6\"></td><th scope=\"colgroup\" colspan=\"4\">Forward outputs</th>"
      "<th scope=\"colgroup\" colspan=\"4\">Gradients</th></tr><tr><th scope=\"col\">Layer</th>"
      "<th scope=\"col\">Format</th><th scope=\"col\" class=\"num\">Ops</th>"
      "<th scope=\"col\" class=\"num\">Bad ops</th>"
      "<th scope=\"col\" class=\"num\">NaN</th><th scope=\"col\" class=\"num\">Inf</th>"
      "<th scope=\"col\" class=\"num\">Went bad</th>"
      "<th scope=\"col\" class=\"num\">Max |x|</th><th scope=\"col\" class=\"num\">Headroom</th>"
      "<th scope=\"col\" class=\"num\">Underflow</th><th scope=\"col\" class=\"num\">Went bad</th>"
      "<th scope=\"col\" class=\"num\">Max |x|</th>"
      "<th scope=\"col\" class=\"num\">Headroom</th><th scope=\"col\" "
      "class=\"num\">Underflow</th></tr></thead><tbody>");
  std::size_t written = 0;
  for (const LayerRow& row : model.layers) {
    if (out.size() > stop_at) break;
    write_layer(out, row);
    ++written;
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, model.layers_omitted + (model.layers.size() - written));
  end_part(out);
  return written;
}

void write_scaler(HtmlWriter& out, const ScalerView& scaler) {
  out.markup("<h3>Loss scaler</h3>").element("p", "", scaler.summary);
  if (scaler.events.empty()) return;
  out.markup(
      "<details><summary>What the scaler did</summary><div class=\"scroll\" role=\"region\" aria-label=\"What the "
      "scaler did\" tabindex=\"0\"><table><caption>Events of the loss scaler</caption><thead><tr>"
      "<th scope=\"col\" class=\"num\">Step</th><th scope=\"col\">What</th><th scope=\"col\" class=\"num\">Scale "
      "after it</th><th scope=\"col\">Note</th></tr></thead><tbody>");
  for (const ScalerEventRow& row : scaler.events) {
    out.markup("<tr><th scope=\"row\" class=\"num\">").text(row.step).markup("</th>").element("td", "", row.what);
    out.element("td", "num", row.scale).element("td", "", row.note).markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, scaler.events_omitted);
  out.markup("</details>");
}

}  // namespace nanhunt::reports
