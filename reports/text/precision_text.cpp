// SPDX-License-Identifier: Apache-2.0
#include "reports/text/precision_text.h"

#include <algorithm>

#include "reports/text/text_layout.h"
#include "reports/views/numbers.h"
#include "reports/views/precision_view.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kLayersShown = 12;  // of all recipes together, but one of each

void write_table(TextLayout& out, const std::string& heading, const TableView& table) {
  if (table.rows.empty()) return;
  out.heading(heading);
  std::vector<std::vector<std::string>> rows = {table.heads};
  for (const TableView::Row& row : table.rows) rows.push_back(row.cells);
  out.table(rows, table.numeric, 2);
  if (table.omitted != 0) out.paragraph("… and " + format_count(table.omitted) + " more", 2);
}

Ink ink_of(PrecisionOutcome outcome) {
  if (outcome == PrecisionOutcome::kSame) return Ink::kGreen;
  return outcome == PrecisionOutcome::kLostSteps || outcome == PrecisionOutcome::kRefused ? Ink::kYellow : Ink::kRed;
}

}  // namespace

std::string render_precision_text(const PrecisionComparison& comparison, const TextOptions& options) {
  const std::size_t recipes = std::max<std::size_t>(2, comparison.runs.size()) - 1;
  const PrecisionView view = view_precision(comparison, std::max<std::size_t>(1, kLayersShown / recipes));
  TextLayout out(options.colour, options.width);
  out.paragraph(view.headline, 0);
  out.raw(out.ink(view.run_line, Ink::kDim));
  if (!view.good) out.blank();
  std::size_t width = 0;
  for (const PrecisionAnswer& answer : view.answers) width = std::max(width, columns_of(answer.recipe));
  for (const PrecisionAnswer& answer : view.answers) {
    if (answer.outcome == PrecisionOutcome::kSame) continue;  // the headline and the table say so
    out.fact(answer.recipe, answer.word, width, ink_of(answer.outcome));
    out.fact("", answer.sentence, width);
  }
  write_table(out, "What came of it", view.results);
  write_table(out, "What a step takes", view.cost);
  write_table(out, "Layers that lose most", view.layers);
  write_table(out, "What was tried", view.trials);
  write_table(out, "Batch sizes", view.sweep);
  out.blank();
  for (const std::string* note : {&view.tolerance_note, &view.layers_note, &view.time_note}) {
    out.paragraph(*note, 0);
  }
  return out.take();
}

}  // namespace nanhunt::reports
