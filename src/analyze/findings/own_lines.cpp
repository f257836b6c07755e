// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/own_lines.h"

#include <algorithm>
#include <string_view>

#include "src/core/text.h"

namespace nanhunt::analyze {
namespace {

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string short_name(const std::string& file, const std::vector<Finding>& all) {
  bool alone = true;
  for (const Finding& other : all) {
    if (other.frames.empty()) continue;
    if (other.frames.front().file == file) return other.call_site.substr(0, other.call_site.rfind(':'));
    alone = alone && std::none_of(other.frames.begin(), other.frames.end(), [&](const SourceFrame& frame) {
      return frame.file != file && last_part(frame.file) == last_part(file) && package_path(frame.file) == 0;
    });
  }
  const std::size_t slash = file.rfind('/');
  if (slash == std::string::npos || slash == 0) return file;
  return file.substr(alone ? slash + 1 : file.rfind('/', slash - 1) + 1);
}

}  // namespace

std::string own_line(const Finding& f, const std::vector<Finding>& all) {
  const auto own = std::find_if(f.frames.begin(), f.frames.end(),
                                [](const SourceFrame& frame) { return package_path(frame.file) == 0; });
  if (own == f.frames.begin() || own == f.frames.end()) return f.call_site;
  return short_name(own->file, all) + ":" + std::to_string(own->line);
}

void lead_to_own_lines(std::vector<Finding>& findings) {
  std::vector<std::string> lines;
  for (const Finding& f : findings) lines.push_back(own_line(f, findings));
  for (std::size_t i = 0; i < findings.size(); ++i) findings[i].call_site = std::move(lines[i]);
}

}  // namespace nanhunt::analyze
