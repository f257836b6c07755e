// SPDX-License-Identifier: Apache-2.0
// Builds HTML in which text can only ever be text: what is not a literal of this program goes through text().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nanhunt::reports {

// Escapes & < > " ' so that the result is inert in element content and in quoted attributes.
std::string escape_html(std::string_view text);

class HtmlWriter {
 public:
  // Markup written in this program's source. Never pass data.
  template <std::size_t N>
  HtmlWriter& markup(const char (&literal)[N]) {
    out_.append(literal, N - 1);
    return *this;
  }
  HtmlWriter& text(std::string_view data);
  HtmlWriter& number(double value);  // a finite coordinate, for an attribute
  // <tag class="css">data</tag>; no class when css is empty. `tag` and `css` are the program's own words.
  HtmlWriter& element(std::string_view tag, std::string_view css, std::string_view data);

  std::size_t size() const { return out_.size(); }
  std::string_view so_far() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace nanhunt::reports
