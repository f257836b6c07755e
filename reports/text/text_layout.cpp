// SPDX-License-Identifier: Apache-2.0
#include "reports/text/text_layout.h"

#include <algorithm>

namespace nanhunt::reports {
namespace {

constexpr int kNarrowest = 40;
constexpr int kWidest = 400;

std::string_view ink_code(Ink ink) {
  switch (ink) {
    case Ink::kPlain:
      return "";
    case Ink::kBold:
      return "\x1b[1m";
    case Ink::kDim:
      return "\x1b[2m";
    case Ink::kRed:
      return "\x1b[1;31m";
    case Ink::kYellow:
      return "\x1b[1;33m";
    case Ink::kGreen:
      return "\x1b[1;32m";
    case Ink::kCyan:
      return "\x1b[36m";
  }
  return "";
}

// Splits at spaces; a word longer than a line stays whole.
std::vector<std::string> wrap(std::string_view text, std::size_t width, std::size_t most = kAllLines) {
  std::vector<std::string> lines;
  std::string line;
  std::size_t line_columns = 0;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    const std::size_t word_columns = columns_of(word);
    if (line_columns != 0 && line_columns + 1 + word_columns > width) {
      if (lines.size() + 1 == most) {
        // Words make room for the sign that more would follow.
        while (line_columns + 2 > width && line.rfind(' ') != std::string::npos) {
          line.erase(line.rfind(' '));
          line_columns = columns_of(line);
        }
        line += " …";
        break;
      }
      lines.push_back(std::move(line));
      line.clear();
      line_columns = 0;
    }
    if (line_columns != 0) {
      line += ' ';
      ++line_columns;
    }
    line += word;
    line_columns += word_columns;
    if (space == std::string_view::npos) break;
    text.remove_prefix(space + 1);
  }
  lines.push_back(std::move(line));
  return lines;
}

void pad(std::string& out, std::size_t count) { out.append(count, ' '); }

}  // namespace

Ink ink_of(VerdictStatus status) {
  switch (status) {
    case VerdictStatus::kFault:
      return Ink::kRed;
    case VerdictStatus::kWarning:
    case VerdictStatus::kInconclusive:
      return Ink::kYellow;
    case VerdictStatus::kClean:
    case VerdictStatus::kCalibrating:
      return Ink::kGreen;
  }
  return Ink::kPlain;
}

std::size_t columns_of(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

TextLayout::TextLayout(bool colour, int width)
    : colour_(colour), width_(static_cast<std::size_t>(std::clamp(width, kNarrowest, kWidest))) {}

std::string TextLayout::ink(std::string_view text, Ink ink) const {
  if (!colour_ || ink == Ink::kPlain || text.empty()) return std::string(text);
  return std::string(ink_code(ink)) + std::string(text) + "\x1b[0m";
}

void TextLayout::blank() { out_ += '\n'; }

void TextLayout::heading(std::string_view text) {
  blank();
  raw(ink(text, Ink::kBold));
}

void TextLayout::raw(std::string_view line) {
  out_ += line;
  out_ += '\n';
}

void TextLayout::paragraph(std::string_view text, std::size_t indent, std::string_view bullet, std::size_t most) {
  const std::size_t hang = indent + columns_of(bullet);
  bool first = true;
  for (const std::string& line : wrap(text, width_ > hang + 20 ? width_ - hang : 20, most)) {
    pad(out_, first ? indent : hang);
    if (first) out_ += bullet;
    out_ += line;
    out_ += '\n';
    first = false;
  }
}

void TextLayout::fact(std::string_view label, std::string_view value, std::size_t label_width, Ink value_ink,
                      std::size_t most) {
  const std::size_t indent = 2 + label_width + 2;
  bool first = true;
  for (const std::string& line : wrap(value, width_ > indent + 20 ? width_ - indent : 20, most)) {
    pad(out_, 2);
    if (first) {
      out_ += ink(label, Ink::kDim);
      const std::size_t used = columns_of(label);
      pad(out_, 2 + (used < label_width ? label_width - used : 0));
    } else {
      pad(out_, label_width + 2);
    }
    out_ += ink(line, value_ink);
    out_ += '\n';
    first = false;
  }
}

void TextLayout::table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
                       std::size_t indent) {
  std::vector<std::size_t> widths(right.size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < rows[r].size() && i < widths.size(); ++i) {
      if (i != 0) line += "  ";
      const std::size_t gap = widths[i] - columns_of(rows[r][i]);
      if (right[i]) pad(line, gap);
      line += rows[r][i];
      if (!right[i]) pad(line, gap);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    raw(r == 0 ? ink(line, Ink::kDim) : line);
  }
}

}  // namespace nanhunt::reports
