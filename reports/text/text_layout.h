// SPDX-License-Identifier: Apache-2.0
// Lines for a terminal: wrapping by characters, hanging indents, columns, colours only when asked for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

enum class Ink { kPlain, kBold, kDim, kRed, kYellow, kGreen, kCyan };

inline constexpr std::size_t kAllLines = static_cast<std::size_t>(-1);

class TextLayout {
 public:
  TextLayout(bool colour, int width);

  std::string ink(std::string_view text, Ink ink) const;

  void blank();
  void heading(std::string_view text);
  void raw(std::string_view line);  // may hold colours; not wrapped
  // `text` wrapped; every line after the first is indented like the first one's text.
  void paragraph(std::string_view text, std::size_t indent, std::string_view bullet = "",
                 std::size_t most = kAllLines);
  // Label in a column of `label_width`, value wrapped beside it; past `most` lines it ends in "…".
  void fact(std::string_view label, std::string_view value, std::size_t label_width, Ink value_ink = Ink::kPlain,
            std::size_t most = kAllLines);
  // First row is the head. Columns named in `right` are aligned to the right.
  void table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right, std::size_t indent);

  std::string take() { return std::move(out_); }

 private:
  bool colour_;
  std::size_t width_;
  std::string out_;
};

Ink ink_of(VerdictStatus status);
std::size_t columns_of(std::string_view utf8);  // characters; every character counts as one column

}  // namespace nanhunt::reports
