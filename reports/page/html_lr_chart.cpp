// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_lr_chart.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "reports/page/html_picture.h"
#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr const PictureFrame& kFrame = kWidePicture;
const double kRailY = kFrame.rail_top() + kRailStep / 2;

double across(const LrRampView& view, double lr) {
  const double share = std::log(lr / view.first_lr) / std::log(view.last_lr / view.first_lr);
  return kFrame.left + share * (kFrame.right - kFrame.left);
}

double height(const LrRampView& view, double loss) {
  return loss_height(kFrame, loss, view.lowest, view.highest, view.logarithmic);
}

std::string tell(const LrPoint& point) {
  return "step " + format_count(point.step) + ", rate " + format_short(point.lr, 3) + ": loss " +
         format_short(point.loss) + ", smoothed " + format_short(point.smoothed);
}

void write_smoothed(HtmlWriter& out, const LrRampView& view) {
  std::size_t open = 0;
  for (const LrPoint& point : view.points) {
    if (!std::isfinite(point.smoothed)) break;  // it stays so
    if (open++ == 0) out.markup("<polyline class=\"loss\" points=\"");
    out.number(across(view, point.lr)).markup(",").number(height(view, point.smoothed)).markup(" ");
  }
  if (open != 0) out.markup("\"/>");
}

void write_losses(HtmlWriter& out, const LrRampView& view) {
  for (const LrPoint& point : view.points) {
    if (!std::isfinite(point.loss)) continue;
    out.markup("<circle class=\"dot\" cx=\"").number(across(view, point.lr)).markup("\" cy=\"");
    out.number(height(view, point.loss)).markup("\" r=\"2.5\"><title>").text(tell(point)).markup("</title></circle>");
  }
}

void write_rail(HtmlWriter& out, const LrRampView& view) {
  draw_line(out, kFrame.left, kRailY, kFrame.right, kRailY);
  draw_label(out, kFrame.left - 10, kRailY + 4, Anchor::kEnd, "loss not finite");
  for (const LrPoint& point : view.points) {
    if (std::isfinite(point.loss)) continue;
    const StepMark mark = std::isnan(point.loss) ? StepMark::kNaN
                          : point.loss > 0       ? StepMark::kPosInf
                                                 : StepMark::kNegInf;
    draw_mark(out, mark, across(view, point.lr), kRailY, tell(point));
  }
}

void write_rate(HtmlWriter& out, const LrRampView& view, double lr, std::string_view what) {
  const double x = across(view, lr);
  draw_line(out, x, kFrame.top, x, kFrame.bottom);
  const bool left = x > kFrame.middle();
  draw_label(out, x + (left ? -6 : 6), kFrame.top + 10, left ? Anchor::kEnd : Anchor::kStart,
             std::string(what) + " " + format_short(lr, 3));
}

}  // namespace

void write_lr_ramp(HtmlWriter& out, const LrRampView& view) {
  if (view.points.size() < 2) return;
  out.element("h3", "", "Loss over the learning rate").element("p", "", view.answer);
  const bool has_rail = std::any_of(view.points.begin(), view.points.end(),
                                    [](const LrPoint& point) { return !std::isfinite(point.loss); });
  const double axis = has_rail ? kFrame.rail_top() + kRailStep + kAxisGap - kRailStep / 2 : kFrame.rail_top();
  out.markup("<svg class=\"chart\" role=\"img\" aria-labelledby=\"rate-title rate-about\" viewBox=\"0 0 ");
  out.number(kFrame.width).markup(" ").number(axis + 10);
  out.markup("\"><title id=\"rate-title\">Loss over the learning rate</title><desc id=\"rate-about\">");
  out.text(view.caption).markup("</desc>");
  if (view.has_losses) {
    draw_loss_axis(out, kFrame, view.lowest, view.highest, view.logarithmic);
  } else {
    draw_label(out, kFrame.middle(), (kFrame.top + kFrame.bottom) / 2, Anchor::kMiddle,
               "no finite loss");
  }
  draw_label(out, kFrame.left, axis, Anchor::kStart, "rate " + format_short(view.first_lr, 3));
  draw_label(out, kFrame.right, axis, Anchor::kEnd, "rate " + format_short(view.last_lr, 3));
  if (view.suggested_lr) write_rate(out, view, *view.suggested_lr, "falls fastest at");
  if (view.stop_lr) write_rate(out, view, *view.stop_lr, "diverged at");
  write_losses(out, view);
  write_smoothed(out, view);
  if (has_rail) write_rail(out, view);
  out.markup(
      "</svg><details><summary>Rates in numbers</summary><div class=\"scroll\" role=\"region\" "
      "aria-label=\"Rates\" tabindex=\"0\"><table><caption>Steps of the ramp, evenly spread</caption><thead><tr>"
      "<th scope=\"col\" class=\"num\">Step</th><th scope=\"col\" class=\"num\">Learning rate</th>"
      "<th scope=\"col\" class=\"num\">Loss</th><th scope=\"col\" class=\"num\">Smoothed loss</th></tr></thead>"
      "<tbody>");
  for (const LrRow& row : view.rows) {
    out.markup("<tr><th scope=\"row\" class=\"num\">").text(row.step).markup("</th>").element("td", "num", row.lr);
    out.element("td", "num", row.loss).element("td", "num", row.smoothed).markup("</tr>");
  }
  out.markup("</tbody></table></div></details>");
}

}  // namespace nanhunt::reports
