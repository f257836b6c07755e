// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_precision.h"

#include <string>

#include "reports/page/html_chart.h"
#include "reports/page/html_finding.h"
#include "reports/page/html_frame.h"
#include "reports/page/html_table.h"
#include "reports/views/precision_view.h"

namespace nanhunt::reports {
namespace {

void write_verdict(HtmlWriter& out, const PrecisionView& view) {
  open_verdict(out, view.good ? VerdictStatus::kClean : VerdictStatus::kWarning);
  out.text(view.word).markup("</p><h1 id=\"headline\">").text(view.headline).markup("</h1>");
  if (!view.answers.empty()) {
    out.markup("<dl class=\"answers\">");
    for (const PrecisionAnswer& answer : view.answers) {
      out.markup("<div>").element("dt", "", answer.recipe).markup("<dd>").element("span", "value", answer.word);
      out.element("span", "note", answer.sentence).markup("</dd></div>");
    }
    out.markup("</dl>");
  }
  out.markup("</section>\n");
}

void write_results(HtmlWriter& out, const PrecisionView& view) {
  begin_wide_part(out, "results", "What came of it");
  write_table(out, view.results, "Table of losses and accuracies");
  out.element("p", "more", view.tolerance_note);
  end_part(out);
}

// One picture for each recipe, with fp32's course in it.
void write_curves(HtmlWriter& out, const PrecisionView& view) {
  if (view.curves.empty()) return;
  begin_part(out, "curves", "Losses");
  const PrecisionCurve& fp32 = view.curves.front();
  out.markup("<p>The full line is the recipe's loss, the dashed one that of fp32.</p>");
  for (std::size_t i = 0; i < view.curves.size(); ++i) {
    const PrecisionCurve& curve = view.curves[i];
    if (curve.timeline.empty()) continue;
    const bool is_fp32 = i == 0;
    if (is_fp32 && view.curves.size() > 1) continue;  // it stands in all others
    out.element("h3", "", curve.recipe);
    const std::string id = "curve-" + std::to_string(i);
    const std::string title = is_fp32 ? "Loss by step in fp32" : "Loss by step in " + curve.recipe + " and in fp32";
    write_loss_chart(out, curve.timeline, {.id = id, .title = title, .reference = is_fp32 ? nullptr : &fp32.timeline});
  }
  end_part(out);
}

void write_cost(HtmlWriter& out, const PrecisionView& view) {
  begin_wide_part(out, "cost", "What a step takes");
  write_table(out, view.cost, "Table of time and memory");
  out.element("p", "more", view.memory_note).element("p", "more", view.time_note);
  end_part(out);
}

void write_layers(HtmlWriter& out, const PrecisionView& view) {
  if (view.layers.rows.empty()) return;
  begin_wide_part(out, "layers", "Layers");
  out.element("p", "", view.layers_note);
  write_table(out, view.layers, "Table of layers", "layer-table", /*code=*/true);
  end_part(out);
}

void write_trials(HtmlWriter& out, const PrecisionView& view) {
  if (view.trials.rows.empty()) return;
  begin_wide_part(out, "tried", "What was tried");
  write_table(out, view.trials, "Table of what was tried");
  end_part(out);
}

void write_sweep(HtmlWriter& out, const PrecisionView& view) {
  if (view.sweep.rows.empty()) return;
  begin_wide_part(out, "batches", "Batch sizes");
  write_table(out, view.sweep, "Table of batch sizes");
  end_part(out);
}

}  // namespace

std::string render_precision_html(const PrecisionComparison& comparison) {
  const PrecisionView view = view_precision(comparison);
  HtmlWriter out;
  out.markup("<header class=\"masthead\"><p class=\"brand\">nanhunt</p>").element("p", "run", view.run_line);
  out.markup("</header>\n<main>\n");
  write_verdict(out, view);
  write_results(out, view);
  write_curves(out, view);
  write_trials(out, view);
  write_layers(out, view);
  write_cost(out, view);
  write_sweep(out, view);
  out.markup("</main>\n");
  write_footer(out, "by training in fp32 and in each recipe");
  return fill_page(view.word + ": " + view.headline + " · nanhunt", out.take(), "");
}

}  // namespace nanhunt::reports
