// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_chart.h"

#include <algorithm>
#include <array>
#include <string>

#include "reports/page/html_picture.h"
#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

struct Rail {
  std::string_view name, small;
  std::array<bool, 5> holds;  // by StepMark
};
constexpr std::array<Rail, 3> kRails = {{{"loss not finite", "NaN or Inf", {true, true, true, false, false}},
                                         {"step skipped", "skipped", {false, false, false, true, false}},
                                         {"bad operations", "bad ops", {false, false, false, false, true}}}};

struct Scale {
  const TimelineView& view;
  const PictureFrame& frame;
  double lowest = 0, highest = 0;
  bool logarithmic = false;
  bool has_losses = false;

  Scale(const TimelineView& shown, const LossChartOptions& options)
      : view(shown), frame(options.small ? kSmallPicture : kWidePicture), lowest(shown.lowest), highest(shown.highest), has_losses(shown.has_losses) {
    const TimelineView* reference = options.reference;
    if (reference != nullptr && reference->has_losses) {
      lowest = has_losses ? std::min(lowest, reference->lowest) : reference->lowest;
      highest = has_losses ? std::max(highest, reference->highest) : reference->highest;
      has_losses = true;
    }
    logarithmic = has_losses && lowest > 0 && highest / lowest > kLogarithmicFrom;
  }

  double x(std::uint32_t step) const {
    const double span = static_cast<double>(view.last_step) - view.first_step;
    if (span <= 0) return frame.middle();
    return frame.left + (static_cast<double>(step) - view.first_step) / span * (frame.right - frame.left);
  }
  double y(double loss) const { return loss_height(frame, loss, lowest, highest, logarithmic); }
};

std::string_view mark_name(StepMark mark) {
  switch (mark) {
    case StepMark::kNaN:
      return "loss is NaN";
    case StepMark::kPosInf:
      return "loss is +Inf";
    case StepMark::kNegInf:
      return "loss is -Inf";
    case StepMark::kSkipped:
      return "step skipped";
    case StepMark::kBadOps:
      return "operations with bad output";
  }
  return "";
}

void write_axes(HtmlWriter& out, const Scale& scale, double bottom) {
  const TimelineView& view = scale.view;
  if (scale.has_losses) {
    draw_loss_axis(out, scale.frame, scale.lowest, scale.highest, scale.logarithmic);
  } else {
    draw_label(out, scale.frame.middle(), (scale.frame.top + scale.frame.bottom) / 2, Anchor::kMiddle,
               view.not_finite == 0 ? "no loss is known" : "no finite loss");
  }
  draw_label(out, scale.x(view.first_step), bottom,
             view.first_step == view.last_step ? Anchor::kMiddle : Anchor::kStart,
             "step " + format_count(view.first_step));
  if (view.first_step != view.last_step) {
    draw_label(out, scale.frame.right, bottom, Anchor::kEnd, "step " + format_count(view.last_step));
  }
}

// The step of the origin: a line from top to bottom, and its number above it.
void write_origin(HtmlWriter& out, const Scale& scale, std::uint32_t step, double bottom) {
  if (step < scale.view.first_step || step > scale.view.last_step) return;
  const double x = scale.x(step), room = (scale.frame.right - scale.frame.left) / 5;
  out.markup("<line class=\"origin\" x1=\"").number(x).markup("\" y1=\"").number(scale.frame.top - 8);
  out.markup("\" x2=\"").number(x).markup("\" y2=\"").number(bottom).markup("\"/><g class=\"origin-name\">");
  const Anchor anchor = x - scale.frame.left < room    ? Anchor::kStart
                        : scale.frame.right - x < room ? Anchor::kEnd
                                                       : Anchor::kMiddle;
  draw_label(out, x, scale.frame.top - 14, anchor, "began in step " + format_count(step));
  out.markup("</g>");
}

void write_reference(HtmlWriter& out, const Scale& scale, const TimelineView& reference) {
  for (const auto& part : reference.lines) {
    out.markup("<polyline class=\"loss reference\" points=\"");
    for (const LossPoint& p : part) out.number(scale.x(p.step)).markup(",").number(scale.y(p.loss)).markup(" ");
    out.markup("\"/>");
  }
}

void write_losses(HtmlWriter& out, const Scale& scale) {
  std::size_t points = 0;
  for (const auto& part : scale.view.lines) points += part.size();
  for (const auto& part : scale.view.lines) {
    if (part.size() > 1) {
      out.markup("<polyline class=\"loss\" points=\"");
      for (const LossPoint& p : part) out.number(scale.x(p.step)).markup(",").number(scale.y(p.loss)).markup(" ");
      out.markup("\"/>");
    }
    if (part.size() > 1 && points > kDotsUpTo) continue;
    for (const LossPoint& p : part) {
      out.markup("<circle class=\"dot\" cx=\"").number(scale.x(p.step)).markup("\" cy=\"").number(scale.y(p.loss));
      out.markup("\" r=\"3\"><title>");
      out.text("step " + format_count(p.step) + ": loss " + format_short(p.loss)).markup("</title></circle>");
    }
  }
}

void write_rail(HtmlWriter& out, const Scale& scale, const Rail& rail, double y, bool small) {
  draw_line(out, scale.frame.left, y, scale.frame.right, y);
  draw_label(out, scale.frame.left - 10, y + 4, Anchor::kEnd, small ? rail.small : rail.name);
  for (const MarkedColumn& mark : scale.view.marks) {
    if (!rail.holds[static_cast<std::size_t>(mark.mark)]) continue;
    std::string what = "step " + format_count(mark.step) + ": " + std::string(mark_name(mark.mark));
    if (mark.count > 1) what += " (" + format_count(mark.count) + " steps here)";
    draw_mark(out, mark.mark, scale.x(mark.step), y, what);
  }
}

}  // namespace

void write_loss_chart(HtmlWriter& out, const TimelineView& view, const LossChartOptions& options) {
  if (view.empty()) return;
  std::vector<const Rail*> rails;
  for (const Rail& rail : kRails) {
    const bool used = std::any_of(view.marks.begin(), view.marks.end(), [&](const MarkedColumn& mark) {
      return rail.holds[static_cast<std::size_t>(mark.mark)];
    });
    if (used) rails.push_back(&rail);
  }
  const Scale scale(view, options);
  const double axis = scale.frame.rail_top() +
       static_cast<double>(rails.size()) * kRailStep + (rails.empty() ? 0 : kAxisGap - kRailStep / 2);
  
  out.markup("<svg class=\"chart\" role=\"img\" aria-labelledby=\"").text(options.id).markup("-title ");
  out.text(options.id).markup("-about\" viewBox=\"0 0 ").number(scale.frame.width).markup(" ").number(axis + 10);
  out.markup("\"><title id=\"").text(options.id).markup("-title\">").text(options.title).markup("</title><desc id=\"").text(options.id).markup("-about\">");
  out.text(chart_caption(view, options.reference == nullptr)).markup("</desc>");
  write_axes(out, scale, axis);
  if (options.reference != nullptr) write_reference(out, scale, *options.reference);
  write_losses(out, scale);
  double y = scale.frame.rail_top() + kRailStep / 2;
  for (const Rail* rail : rails) {
    write_rail(out, scale, *rail, y, options.small);
    y += kRailStep;
  }
  if (options.origin) write_origin(out, scale, *options.origin, axis - kAxisGap + kRailStep / 2);
  out.markup("</svg>");
}

}  // namespace nanhunt::reports
