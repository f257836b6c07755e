// SPDX-License-Identifier: Apache-2.0
#include "reports/views/code_view.h"

#include <algorithm>
#include <string>

namespace nanhunt::reports {
namespace {

bool is_blank(const CodeLine& line) { return line.text.find_first_not_of(' ') == std::string::npos; }

}  // namespace

std::vector<CodeLine> lines_around(const FrameView& frame, std::size_t most) {
  const auto here = std::find_if(frame.lines.begin(), frame.lines.end(), [](const CodeLine& line) { return line.here; });
  if (here == frame.lines.end() || most == 0) return {};
  // What led to the line tells more than what follows it.
  const auto before = std::min<std::ptrdiff_t>(here - frame.lines.begin(), static_cast<std::ptrdiff_t>(most) / 2);
  const auto after = std::min<std::ptrdiff_t>(frame.lines.end() - here, static_cast<std::ptrdiff_t>(most) - before);
  std::vector<CodeLine> lines(here - before, here + after);
  while (!lines.front().here && is_blank(lines.front())) lines.erase(lines.begin());
  while (!lines.back().here && is_blank(lines.back())) lines.pop_back();
  std::size_t shared = std::string::npos;
  for (const CodeLine& line : lines) {
    if (!is_blank(line)) shared = std::min(shared, line.text.find_first_not_of(' '));
  }
  for (CodeLine& line : lines) line.text = is_blank(line) ? "" : line.text.substr(shared);
  return lines;
}

}  // namespace nanhunt::reports
