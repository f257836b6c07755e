// SPDX-License-Identifier: Apache-2.0
// The page around the report: reports/html/page.html, report.css and the bundled scripts of src/, put here by
// reports/html/embed.cmake.
#pragma once

#include <string_view>

namespace nanhunt::reports {

extern const std::string_view kPageTemplate;  // with {{policy}}, {{title}}, {{style}}, {{body}}, {{scripts}}, once each
extern const std::string_view kPageStyle;     // the exact bytes between <style> and </style>
extern const std::string_view kPageStyleHash;   // "sha256-..." of those bytes
extern const std::string_view kPageScript;      // the charts; empty where they could not be bundled
extern const std::string_view kPageScriptHash;  // "sha256-..." of those bytes

}  // namespace nanhunt::reports
