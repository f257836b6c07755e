// SPDX-License-Identifier: Apache-2.0
#include "reports/views/code_view.h"

#include <algorithm>
#include <span>
#include <string>

#include "reports/views/statement.h"

namespace nanhunt::reports {
namespace {

bool is_blank(const CodeLine& line) { return line.text.find_first_not_of(' ') == std::string::npos; }

std::vector<std::string> texts_of(const FrameView& frame) {
  std::vector<std::string> texts;
  for (const CodeLine& line : frame.lines) texts.push_back(line.text);
  return texts;
}

}  // namespace

std::vector<CodeLine> lines_around(const FrameView& frame, std::size_t most) {
  const auto here = std::find_if(frame.lines.begin(), frame.lines.end(), [](const CodeLine& line) { return line.here; });
  if (here == frame.lines.end() || most == 0) return {};
  const StatementLines statement = statement_at(texts_of(frame), static_cast<std::size_t>(here - frame.lines.begin()));
  const auto first = frame.lines.begin() + static_cast<std::ptrdiff_t>(statement.first);
  const auto count = static_cast<std::ptrdiff_t>(statement.count);
  const auto room = std::max(static_cast<std::ptrdiff_t>(most), count);
  // What led to the line tells more than what follows it.
  const auto before = std::min<std::ptrdiff_t>(first - frame.lines.begin(), (room - count + 1) / 2);
  const auto after = std::min<std::ptrdiff_t>(frame.lines.end() - first, room - before);
  std::vector<CodeLine> lines(first - before, first + after);
  while (!lines.front().here && is_blank(lines.front())) lines.erase(lines.begin());
  while (!lines.back().here && is_blank(lines.back())) lines.pop_back();
  std::size_t shared = std::string::npos;
  for (const CodeLine& line : lines) {
    if (!is_blank(line)) shared = std::min(shared, line.text.find_first_not_of(' '));
  }
  for (CodeLine& line : lines) line.text = is_blank(line) ? "" : line.text.substr(shared);
  return lines;
}

CodeLine statement_in_line(const FrameView& frame) {
  const auto here =
      std::find_if(frame.lines.begin(), frame.lines.end(), [](const CodeLine& line) { return line.here; });
  if (here == frame.lines.end()) return {};
  const std::vector<std::string> texts = texts_of(frame);
  const StatementLines statement = statement_at(texts, static_cast<std::size_t>(here - frame.lines.begin()));
  const std::size_t last = statement.first + statement.count - 1;
  CodeLine line{frame.lines[statement.first].number,
                in_one_line(std::span(texts).subspan(statement.first, statement.count)), true};
  if (statement.count > 1) line.number += "-" + frame.lines[last].number;
  return line;
}

}  // namespace nanhunt::reports
