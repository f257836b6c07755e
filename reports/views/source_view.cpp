// SPDX-License-Identifier: Apache-2.0
#include "reports/views/source_view.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/views/statement.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kCodeLimit = 160, kCodeInSentence = 80;

// Tabs are indents here, not characters that could steer a terminal.
std::string spaced(const std::string& line) {
  std::string out;
  for (const char c : line) {
    if (c == '\t') {
      out += "    ";
    } else if (c != '\r') {
      out += c;
    }
  }
  return out;
}

std::string_view stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

std::string line_of(const SourceFrame& frame) {
  if (frame.line < frame.first_line || frame.line - frame.first_line >= frame.code.size()) return "";
  return spaced(frame.code[frame.line - frame.first_line]);
}

// The statement that ran, in one line; of a long one the line.
std::string statement_of(const SourceFrame& frame) {
  const std::string line = line_of(frame);
  if (line.empty()) return "";
  std::vector<std::string> lines;
  for (const std::string& one : frame.code) lines.push_back(spaced(one));
  const StatementLines at = statement_at(lines, frame.line - frame.first_line);
  const std::string whole = at.cut || at.count == 1 ? "" : in_one_line(std::span(lines).subspan(at.first, at.count));
  return whole.empty() || whole.size() > kCodeLimit ? std::string(stripped(line)) : whole;
}

}  // namespace

FramesView view_frames(const std::vector<SourceFrame>& frames) {
  FramesView out;
  for (const SourceFrame& frame : frames) {
    const std::size_t package = package_path(frame.file);
    std::vector<FrameView>& to = package == 0 ? out.own : out.installed;
    if (to.size() == kMaxFrames) continue;
    FrameView view;
    view.place = clip(std::string_view(frame.file).substr(package), kNameLimit);
    if (frame.line != 0) view.place += ":" + std::to_string(frame.line);
    view.function = clip(frame.function, kNameLimit);
    view.code = clip(statement_of(frame), kCodeLimit);
    for (std::size_t i = 0; i < frame.code.size(); ++i) {
      const std::uint64_t number = frame.first_line + i;
      view.lines.push_back({std::to_string(number), clip(spaced(frame.code[i]), kCodeLimit), number == frame.line});
    }
    to.push_back(std::move(view));
  }
  if (out.own.empty() && !out.installed.empty()) {
    out.own.push_back(std::move(out.installed.front()));
    out.installed.erase(out.installed.begin());
  }
  return out;
}

std::string likewise_at(const Finding& finding) {
  constexpr std::size_t kMost = 3;
  if (finding.also_at.empty()) return "";
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < finding.also_at.size() && i < kMost; ++i) lines.push_back(clip(finding.also_at[i], kNameLimit));
  return " Likewise at " + join(lines, ", ") + ".";
}

std::string change_sentence(const Finding& finding) {
  if (finding.advice.empty() || tried(finding.advice.front()) == Tried::kFailed) return "";
  const std::string advice = clip(finding.advice.front().text, kSentenceLimit) + likewise_at(finding);
  std::string where = clip(finding.call_site, kNameLimit);
  if (where.empty()) return advice;
  if (!finding.frames.empty()) {
    const auto own = std::find_if(finding.frames.begin(), finding.frames.end(),
                                  [](const SourceFrame& frame) { return package_path(frame.file) == 0; });
    const SourceFrame& inner = finding.frames.front();
    const SourceFrame& frame = own == finding.frames.end() ? inner : *own;
    // A long line stands below, whole.
    std::string code = clip(statement_of(frame), kCodeLimit);
    if (code.size() > kCodeInSentence) code.clear();
    if (own != finding.frames.end() && own != finding.frames.begin())
      code += (code.empty() ? "through " : ", through ") + clip(inner.file.substr(package_path(inner.file)), kNameLimit) + ":" +
              std::to_string(inner.line);
    if (!code.empty()) where += " (" + code + ")";
  }
  return "At " + where + ": " + advice;
}

}  // namespace nanhunt::reports
