// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/html_scan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace nanhunt::testing_reports {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// From just behind '<'; leaves `at` behind '>'.
HtmlTag read_tag(const std::string& html, std::size_t& at, std::string& error) {
  HtmlTag tag;
  while (at < html.size() && !is_space(html[at]) && html[at] != '>') tag.name += html[at++];
  while (at < html.size() && html[at] != '>') {
    if (is_space(html[at]) || html[at] == '/') {
      ++at;
      continue;
    }
    std::string name, value;
    while (at < html.size() && html[at] != '=' && html[at] != '>' && !is_space(html[at])) name += html[at++];
    if (at < html.size() && html[at] == '=') {
      if (++at >= html.size() || html[at] != '"') {
        error = "attribute " + name + " is not in double quotes";
        return tag;
      }
      ++at;
      while (at < html.size() && html[at] != '"') value += html[at++];
      ++at;
    }
    tag.attributes.emplace_back(name, value);
  }
  if (at >= html.size()) error = "tag " + tag.name + " does not end";
  ++at;
  return tag;
}

}  // namespace

HtmlScan scan_html(const std::string& html) {
  HtmlScan scan;
  for (std::size_t at = 0; at < html.size() && scan.error.empty();) {
    if (html[at] != '<') {
      scan.text += html[at++];
      continue;
    }
    ++at;
    HtmlTag tag = read_tag(html, at, scan.error);
    if (tag.name == "style") {
      const std::size_t end = html.find("</style>", at);
      scan.style = html.substr(at, end - at);
      at = end;
    }
    if (tag.name == "script") {
      const std::size_t end = html.find("</script>", at);
      scan.scripts.push_back(html.substr(at, end - at));
      at = end;
    }
    scan.tags.push_back(std::move(tag));
  }
  return scan;
}

std::string unbalanced(const HtmlScan& scan) {
  static constexpr std::array<std::string_view, 4> kVoid = {"meta", "!doctype", "line",
                                                            "polyline"};  // written <line .../>
  std::vector<std::string> open;
  for (const HtmlTag& tag : scan.tags) {
    if (std::find(kVoid.begin(), kVoid.end(), tag.name) != kVoid.end()) continue;
    if (tag.name.front() != '/') {
      open.push_back(tag.name);
    } else if (open.empty() || open.back() != tag.name.substr(1)) {
      return tag.name + " closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

}  // namespace nanhunt::testing_reports
