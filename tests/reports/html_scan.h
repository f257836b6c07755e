// SPDX-License-Identifier: Apache-2.0
// Reads HTML strictly enough to say what a browser would see as tags and attributes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nanhunt::testing_reports {

struct HtmlTag {
  std::string name;  // "/p" for an end tag, "!" for a doctype or comment
  std::vector<std::pair<std::string, std::string>> attributes;
};
struct HtmlScan {
  std::vector<HtmlTag> tags;
  std::string text;                  // all text between tags, entities as they stand, without style and scripts
  std::string style;                 // of the one style element
  std::vector<std::string> scripts;  // what each script element holds, data among them
  std::string error;                 // empty: every tag was read to its end
};

HtmlScan scan_html(const std::string& html);
// Open and close tags match up; empty when they do.
std::string unbalanced(const HtmlScan& scan);

}  // namespace nanhunt::testing_reports
