// SPDX-License-Identifier: Apache-2.0
#include "reports/views/source_view.h"

#include <algorithm>
#include <string_view>

#include "reports/views/numbers.h"
#include "reports/views/report_model.h"

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

}  // namespace

std::size_t package_path(std::string_view file) {
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    if (const std::size_t at = file.rfind(folder); at != file.npos) return at + folder.size();
  }
  // Python's own: "/usr/lib/python3.11/contextlib.py".
  constexpr std::string_view kPython = "/lib/python";
  const std::size_t at = file.find(kPython);
  if (at == file.npos) return 0;
  const std::size_t end = file.find_first_not_of("0123456789.", at + kPython.size());
  return end != file.npos && end != at + kPython.size() && file[end] == '/' ? end + 1 : 0;
}

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
    view.code = clip(stripped(line_of(frame)), kCodeLimit);
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

std::string change_sentence(const Finding& finding) {
  const std::vector<const Advice*> order = order_advice(finding.advice);
  if (order.empty() || tried(*order.front()) == Tried::kFailed) return "";
  const std::string advice = clip(order.front()->text, kSentenceLimit);
  std::string where = clip(finding.call_site, kNameLimit);
  if (where.empty()) return advice;
  if (!finding.frames.empty()) {
    // A long line stands below, whole.
    const std::string line = line_of(finding.frames.front());
    const std::string code = clip(stripped(line), kCodeLimit);
    if (!code.empty() && code.size() <= kCodeInSentence) where += " (" + code + ")";
  }
  return "At " + where + ": " + advice;
}

}  // namespace nanhunt::reports
