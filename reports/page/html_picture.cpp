// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_picture.h"

#include <cmath>

#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr double kMarkerRadius = 5;
constexpr int kAxisDigits = 4;

double stands_for(double loss, bool logarithmic) { return logarithmic ? std::log10(loss) : loss; }

}  // namespace

double loss_height(const PictureFrame& frame, double loss, double lowest, double highest, bool logarithmic) {
  const double low = stands_for(lowest, logarithmic), high = stands_for(highest, logarithmic);
  // Halves first: the difference of two huge losses must not overflow.
  const double span = high / 2 - low / 2;
  if (!(span > 0)) return (frame.top + frame.bottom) / 2;
  return frame.bottom - (stands_for(loss, logarithmic) / 2 - low / 2) / span * (frame.bottom - frame.top);
}

void draw_line(HtmlWriter& out, double x1, double y1, double x2, double y2) {
  out.markup("<line class=\"grid\" x1=\"").number(x1).markup("\" y1=\"").number(y1);
  out.markup("\" x2=\"").number(x2).markup("\" y2=\"").number(y2).markup("\"/>");
}

void draw_label(HtmlWriter& out, double x, double y, Anchor anchor, std::string_view text) {
  out.markup("<text x=\"").number(x).markup("\" y=\"").number(y).markup("\" text-anchor=\"");
  if (anchor == Anchor::kStart) out.markup("start");
  if (anchor == Anchor::kMiddle) out.markup("middle");
  if (anchor == Anchor::kEnd) out.markup("end");
  out.markup("\">").text(text).markup("</text>");
}

void draw_loss_axis(HtmlWriter& out, const PictureFrame& frame, double lowest, double highest, bool logarithmic) {
  const bool flat = !(highest > lowest);
  const double middle = logarithmic ? std::sqrt(lowest) * std::sqrt(highest) : lowest / 2 + highest / 2;
  for (const double loss : {lowest, middle, highest}) {
    if (flat && loss != lowest) continue;
    const double y = loss_height(frame, loss, lowest, highest, logarithmic);
    draw_line(out, frame.left, y, frame.right, y);
    draw_label(out, frame.left - 10, y + 4, Anchor::kEnd, format_short(loss, kAxisDigits));
    if (flat) break;
  }
}

void draw_mark(HtmlWriter& out, StepMark mark, double x, double y, std::string_view meaning) {
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
  out.markup("\"><title>").text(meaning).markup("</title>");
  if (mark == StepMark::kSkipped) {
    out.markup("</circle>");
  } else {
    out.markup("</path>");
  }
}

}  // namespace nanhunt::reports
