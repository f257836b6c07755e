// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

// The picture's own units.
constexpr double kWidth = 960, kLeft = 130, kRight = 945;
constexpr double kTop = 16, kBottom = 196;
constexpr double kRailTop = 222, kRailStep = 24;
constexpr double kAxisGap = 22;
constexpr std::size_t kDotsUpTo = 80;  // more points than this are drawn as a line only
constexpr double kMarkerRadius = 5;

struct Rail {
  std::string_view name;
  std::array<bool, 5> holds;  // by StepMark
};
constexpr std::array<Rail, 3> kRails = {{{"loss not finite", {true, true, true, false, false}},
                                         {"step skipped", {false, false, false, true, false}},
                                         {"bad operations", {false, false, false, false, true}}}};

struct Scale {
  const TimelineView& view;

  double x(std::uint32_t step) const {
    const double span = static_cast<double>(view.last_step) - view.first_step;
    if (span <= 0) return (kLeft + kRight) / 2;
    return kLeft + (static_cast<double>(step) - view.first_step) / span * (kRight - kLeft);
  }
  double of(double loss) const { return view.logarithmic ? std::log10(loss) : loss; }
  double y(double loss) const {
    const double low = of(view.lowest), high = of(view.highest);
    // Halves first: the difference of two huge losses must not overflow.
    const double span = high / 2 - low / 2;
    if (!(span > 0)) return (kTop + kBottom) / 2;
    return kBottom - (of(loss) / 2 - low / 2) / span * (kBottom - kTop);
  }
};

void line(HtmlWriter& out, double x1, double y1, double x2, double y2) {
  out.markup("<line class=\"grid\" x1=\"").number(x1).markup("\" y1=\"").number(y1);
  out.markup("\" x2=\"").number(x2).markup("\" y2=\"").number(y2).markup("\"/>");
}

enum class Anchor { kStart, kMiddle, kEnd };
void label(HtmlWriter& out, double x, double y, Anchor anchor, std::string_view text) {
  out.markup("<text x=\"").number(x).markup("\" y=\"").number(y).markup("\" text-anchor=\"");
  if (anchor == Anchor::kStart) out.markup("start");
  if (anchor == Anchor::kMiddle) out.markup("middle");
  if (anchor == Anchor::kEnd) out.markup("end");
  out.markup("\">").text(text).markup("</text>");
}

// A cross for NaN, triangles for the infinities, a ring for a skipped step, a square for bad operations.
void marker(HtmlWriter& out, StepMark mark, double x, double y) {
  const double r = kMarkerRadius;
  const auto to = [&](double dx, double dy) { out.number(x + dx).markup(" ").number(y + dy); };
  switch (mark) {
    case StepMark::kNaN:
      out.markup("<path class=\"mark bad\" d=\"M");
      to(-r, -r);
      out.markup("L");
      to(r, r);
      out.markup("M");
      to(-r, r);
      out.markup("L");
      to(r, -r);
      break;
    case StepMark::kPosInf:
      out.markup("<path class=\"mark bad fill\" d=\"M");
      to(-r, r);
      out.markup("L");
      to(r, r);
      out.markup("L");
      to(0, -r);
      out.markup("Z");
      break;
    case StepMark::kNegInf:
      out.markup("<path class=\"mark bad fill\" d=\"M");
      to(-r, -r);
      out.markup("L");
      to(r, -r);
      out.markup("L");
      to(0, r);
      out.markup("Z");
      break;
    case StepMark::kSkipped:
      out.markup("<circle class=\"mark skip\" cx=\"")
          .number(x)
          .markup("\" cy=\"")
          .number(y)
          .markup("\" r=\"")
          .number(r);
      break;
    case StepMark::kBadOps:
      out.markup("<path class=\"mark bad fill\" d=\"M");
      to(-r + 1, -r + 1);
      out.markup("L");
      to(r - 1, -r + 1);
      out.markup("L");
      to(r - 1, r - 1);
      out.markup("L");
      to(-r + 1, r - 1);
      out.markup("Z");
      break;
  }
}

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
  if (view.has_losses) {
    const bool flat = !(view.highest > view.lowest);
    const double middle =
        view.logarithmic ? std::sqrt(view.lowest) * std::sqrt(view.highest) : view.lowest / 2 + view.highest / 2;
    for (const double loss : {view.lowest, middle, view.highest}) {
      if (flat && loss != view.lowest) continue;
      line(out, kLeft, scale.y(loss), kRight, scale.y(loss));
      label(out, kLeft - 10, scale.y(loss) + 4, Anchor::kEnd, format_short(loss));
      if (flat) break;
    }
  } else {
    label(out, (kLeft + kRight) / 2, (kTop + kBottom) / 2, Anchor::kMiddle, "no finite loss");
  }
  label(out, scale.x(view.first_step), bottom, view.first_step == view.last_step ? Anchor::kMiddle : Anchor::kStart,
        "step " + format_count(view.first_step));
  if (view.first_step != view.last_step) {
    label(out, kRight, bottom, Anchor::kEnd, "step " + format_count(view.last_step));
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

void write_rail(HtmlWriter& out, const Scale& scale, const Rail& rail, double y) {
  line(out, kLeft, y, kRight, y);
  label(out, kLeft - 10, y + 4, Anchor::kEnd, rail.name);
  for (const MarkedColumn& mark : scale.view.marks) {
    if (!rail.holds[static_cast<std::size_t>(mark.mark)]) continue;
    marker(out, mark.mark, scale.x(mark.step), y);
    out.markup("\"><title>");
    std::string what = "step " + format_count(mark.step) + ": " + std::string(mark_name(mark.mark));
    if (mark.count > 1) what += " (" + format_count(mark.count) + " steps here)";
    out.text(what).markup("</title>");
    // marker() opened one of these two.
    if (mark.mark == StepMark::kSkipped) {
      out.markup("</circle>");
    } else {
      out.markup("</path>");
    }
  }
}

}  // namespace

void write_loss_chart(HtmlWriter& out, const TimelineView& view) {
  if (view.empty()) return;
  std::vector<const Rail*> rails;
  for (const Rail& rail : kRails) {
    const bool used = std::any_of(view.marks.begin(), view.marks.end(), [&](const MarkedColumn& mark) {
      return rail.holds[static_cast<std::size_t>(mark.mark)];
    });
    if (used) rails.push_back(&rail);
  }
  const double axis =
      kRailTop + static_cast<double>(rails.size()) * kRailStep + (rails.empty() ? 0 : kAxisGap - kRailStep / 2);
  const Scale scale{view};
  out.markup("<svg class=\"chart\" role=\"img\" aria-labelledby=\"loss-title loss-about\" viewBox=\"0 0 ");
  out.number(kWidth).markup(" ").number(axis + 10).markup("\"><title id=\"loss-title\">Loss by step</title>");
  out.markup("<desc id=\"loss-about\">").text(chart_caption(view)).markup("</desc>");
  write_axes(out, scale, axis);
  write_losses(out, scale);
  double y = kRailTop + kRailStep / 2;
  for (const Rail* rail : rails) {
    write_rail(out, scale, *rail, y);
    y += kRailStep;
  }
  out.markup("</svg>");
}

}  // namespace nanhunt::reports
