// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_writer.h"

#include <charconv>

namespace nanhunt::reports {

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

HtmlWriter& HtmlWriter::text(std::string_view data) {
  out_ += escape_html(data);
  return *this;
}

HtmlWriter& HtmlWriter::number(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, 1);
  if (result.ec == std::errc()) out_.append(buffer, result.ptr);
  return *this;
}

HtmlWriter& HtmlWriter::element(std::string_view tag, std::string_view css, std::string_view data) {
  out_ += '<';
  out_ += tag;
  if (!css.empty()) {
    out_ += " class=\"";
    out_ += css;
    out_ += '"';
  }
  out_ += '>';
  text(data);
  out_ += "</";
  out_ += tag;
  out_ += '>';
  return *this;
}

}  // namespace nanhunt::reports
