// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_magnitudes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "reports/page/html_finding.h"
#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

// The picture's own units.
constexpr double kWidth = 960, kLeft = 190, kRight = 945, kTop = 14;
constexpr double kRowHeight = 58, kBarHeight = 36, kSpanHeight = 12;
constexpr double kFormatStep = 22, kFormatHeight = 11, kAxisHeight = 30, kGap = 10;
constexpr double kLeastBar = 2;  // a bin that is not empty can be seen
constexpr std::size_t kLabelChars = 24;

struct Scale {
  const MagnitudeView& view;
  double x(int binade) const {
    const double at = static_cast<double>(std::clamp(binade, view.from, view.to) - view.from) / (view.to - view.from);
    return kLeft + at * (kRight - kLeft);
  }
};

std::string power(int binade) { return "2^" + std::to_string(binade); }

// Names are long at their front: "…mlp.fc2.weight".
std::string tail(const std::string& text) {
  if (text.size() <= kLabelChars) return text;
  std::size_t at = text.size() - kLabelChars;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  return "…" + text.substr(at);
}

void rect(HtmlWriter& out, double x, double y, double width, double height) {
  out.markup(" x=\"").number(x).markup("\" y=\"").number(y).markup("\" width=\"").number(std::max(width, 0.0));
  out.markup("\" height=\"").number(height).markup("\">");
}

void text_at(HtmlWriter& out, double x, double y, std::string_view text) {
  out.markup("<text text-anchor=\"end\" x=\"").number(x).markup("\" y=\"").number(y).markup("\">");
  out.text(text).markup("</text>");
}

void rule(HtmlWriter& out, double x1, double y1, double x2, double y2) {
  out.markup("<line class=\"grid\" x1=\"").number(x1).markup("\" y1=\"").number(y1);
  out.markup("\" x2=\"").number(x2).markup("\" y2=\"").number(y2).markup("\"/>");
}

void write_row(HtmlWriter& out, const Scale& scale, const MagnitudeRow& row, double y) {
  const double base = y + kRowHeight - kGap;
  rule(out, kLeft, base, kRight, base);
  text_at(out, kLeft - 12, base - 18, tail(row.label));
  std::string about = row.dtype;
  if (!row.zeros.empty()) about += " · " + row.zeros + " zero";
  if (!row.nonfinite.empty()) about += " · " + row.nonfinite + " NaN/Inf";
  text_at(out, kLeft - 12, base - 2, about);
  if (row.bins.empty()) {
    if (row.beyond == row.least) return;
    out.markup("<rect class=\"span\"");
    rect(out, scale.x(row.least), base - kSpanHeight - 6, scale.x(row.beyond) - scale.x(row.least), kSpanHeight);
    out.markup("<title>").text("from about " + power(row.least) + " to below " + power(row.beyond));
    out.markup("</title></rect>");
    return;
  }
  const std::int64_t most = *std::max_element(row.bins.begin(), row.bins.end());
  for (std::size_t i = 0; i < row.bins.size(); ++i) {
    if (row.bins[i] <= 0) continue;
    const int binade = row.least + static_cast<int>(i);
    const double height =
        std::max(kLeastBar, kBarHeight * static_cast<double>(row.bins[i]) / static_cast<double>(most));
    out.markup("<rect class=\"bar\"");
    rect(out, scale.x(binade) + 0.5, base - height, scale.x(binade + 1) - scale.x(binade) - 1, height);
    out.markup("<title>").text(power(binade) + ": " + format_signed_count(row.bins[i])).markup("</title></rect>");
  }
}

void arrow(HtmlWriter& out, double x, double y, std::string_view sign) { text_at(out, x, y + kFormatHeight - 1, sign); }

void write_format(HtmlWriter& out, const Scale& scale, const FormatRange& format, bool used, double y) {
  const auto part = [&](bool normal, int from, int to) {
    if (scale.x(to) <= scale.x(from)) return;
    if (normal && used) {
      out.markup("<rect class=\"range used\"");
    } else if (normal) {
      out.markup("<rect class=\"range\"");
    } else {
      out.markup("<rect class=\"range below\"");
    }
    rect(out, scale.x(from), y, scale.x(to) - scale.x(from), kFormatHeight);
    out.markup("<title>").text(format.name + (normal ? ", normal: " : ", subnormal: ") + power(from) + " to " +
                               power(to));
    out.markup("</title></rect>");
  };
  text_at(out, kLeft - 12, y + kFormatHeight - 1, used ? format.name + " (used here)" : format.name);
  part(false, format.least, format.normal);
  part(true, format.normal, format.beyond);
  // It goes on outside the picture.
  if (format.least < scale.view.from) arrow(out, kLeft - 1, y, "‹");
  if (format.beyond > scale.view.to) arrow(out, kRight + 9, y, "›");
}

void write_axis(HtmlWriter& out, const Scale& scale, double bottom) {
  const int span = scale.view.to - scale.view.from;
  const int every = span > 400 ? 128 : span > 160 ? 32 : span > 80 ? 16 : 8;
  for (int binade = scale.view.from; binade <= scale.view.to; ++binade) {
    if (binade % every != 0) continue;
    rule(out, scale.x(binade), kTop, scale.x(binade), bottom);
    out.markup("<text text-anchor=\"middle\" x=\"").number(scale.x(binade)).markup("\" y=\"").number(bottom + 18);
    out.markup("\">").text(power(binade)).markup("</text>");
  }
}

void write_twin(HtmlWriter& out, const MagnitudeView& view) {
  out.markup(
      "<details><summary>Magnitudes in numbers</summary><div class=\"scroll\" role=\"region\" aria-label=\"Magnitudes "
      "in numbers\" tabindex=\"0\"><table><caption>Elements by magnitude, and what formats can "
      "keep</caption><thead><tr>"
      "<th scope=\"col\">Tensor or format</th><th scope=\"col\">From</th><th scope=\"col\">To below</th>"
      "<th scope=\"col\">Elements by binade, smallest first</th></tr></thead><tbody>");
  for (const MagnitudeRow& row : view.rows) {
    out.markup("<tr>").markup("<th scope=\"row\">").text(row.label).markup("</th>");
    const bool known = row.beyond > row.least;
    out.element("td", "", known ? power(row.least) : "—").element("td", "", known ? power(row.beyond) : "—");
    std::string counts = row.bins.empty() ? "not counted by binade" : "";
    for (const std::int64_t n : row.bins) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
    out.element("td", "", counts).markup("</tr>");
  }
  for (const FormatRange& format : view.formats) {
    out.markup("<tr>").markup("<th scope=\"row\">").text(format.name).markup("</th>");
    out.element("td", "", power(format.least)).element("td", "", power(format.beyond));
    out.element("td", "", "fewer digits below " + power(format.normal)).markup("</tr>");
  }
  out.markup("</tbody></table></div></details>");
}

}  // namespace

void write_magnitudes(HtmlWriter& out, const MagnitudeView& view) {
  if (view.empty()) return;
  const Scale scale{view};
  const double rows_end = kTop + kRowHeight * static_cast<double>(view.rows.size());
  const double bottom = rows_end + kGap + kFormatStep * static_cast<double>(view.formats.size());
  out.markup(
      "<figure class=\"magnitudes\"><figcaption>How large the numbers are, and what each format can keep. Outlined: "
      "subnormal, with fewer digits.</figcaption><svg class=\"chart\" role=\"img\" "
      "aria-labelledby=\"magnitudes-title\" "
      "viewBox=\"0 0 ");
  out.number(kWidth).markup(" ").number(bottom + kAxisHeight);
  out.markup(
      "\"><title id=\"magnitudes-title\">Magnitudes of inputs and output by power of two, above the ranges of fp16, "
      "bf16, fp32, e4m3fn and e5m2; the same in numbers below</title>");
  write_axis(out, scale, bottom);
  double y = kTop;
  for (const MagnitudeRow& row : view.rows) {
    write_row(out, scale, row, y);
    y += kRowHeight;
  }
  y = rows_end + kGap;
  for (const FormatRange& format : view.formats) {
    const bool used = std::any_of(view.rows.begin(), view.rows.end(),
                                  [&](const MagnitudeRow& row) { return row.dtype == format.name; });
    write_format(out, scale, format, used, y);
    y += kFormatStep;
  }
  out.markup("</svg>");
  write_twin(out, view);
  out.markup("</figure>");
}

}  // namespace nanhunt::reports
