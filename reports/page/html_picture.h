// SPDX-License-Identifier: Apache-2.0
// What still pictures of losses share: their frame, lines, labels and marks.
#pragma once

#include <string_view>

#include "reports/page/html_writer.h"
#include "reports/views/timeline_view.h"

namespace nanhunt::reports {

// Where the losses stand, in the picture's own units.
struct PictureFrame {
  double width = 960, left = 130, right = 945, top = 16, bottom = 196;
  double rail_top() const { return bottom + 26; }
  double middle() const { return (left + right) / 2; }
};
inline constexpr PictureFrame kWidePicture{};
inline constexpr PictureFrame kSmallPicture{560, 108, 548, 30, 214};  // half of a screen, or a phone
inline constexpr double kRailStep = 24, kAxisGap = 22;
inline constexpr std::size_t kDotsUpTo = 80;  // more points than this are drawn as a line only

// Where a loss stands. An extent of 0 stands in the middle.
double loss_height(const PictureFrame& frame, double loss, double lowest, double highest, bool logarithmic);

void draw_line(HtmlWriter& out, double x1, double y1, double x2, double y2);
enum class Anchor { kStart, kMiddle, kEnd };
void draw_label(HtmlWriter& out, double x, double y, Anchor anchor, std::string_view text);
// Lines across the picture at its lowest, middle and highest loss.
void draw_loss_axis(HtmlWriter& out, const PictureFrame& frame, double lowest, double highest, bool logarithmic);
// A cross for NaN, triangles for the infinities, a ring for a skipped step, a square for bad operations; what it means
// where a pointer stands on it.
void draw_mark(HtmlWriter& out, StepMark mark, double x, double y, std::string_view meaning);

}  // namespace nanhunt::reports
