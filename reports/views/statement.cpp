// SPDX-License-Identifier: Apache-2.0
#include "reports/views/statement.h"

#include <algorithm>

namespace nanhunt::reports {
namespace {

// Python's line as far as it concerns operators: what stands in strings is blank, a comment is left out. nullopt: where
// it ends is not known, for a string goes on, or the line was cut.
std::optional<std::string> without_strings(std::string_view line) {
  std::string out;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\') {
        out += "__";
        ++i;
        continue;
      }
      if (c == quote) quote = 0;
      out += '_';
    } else if (c == '#') {
      break;
    } else if (c == '"' || c == '\'') {
      quote = c;
      out += '_';
    } else {
      out += c;
    }
  }
  if (quote != 0 || out.size() > line.size() || out.ends_with("…")) return std::nullopt;
  return out;
}

int depth_of(std::string_view plain) {
  int depth = 0;
  for (const char c : plain) depth += opens(c) ? 1 : closes(c) ? -1 : 0;
  return depth;
}

// Whether a line can only go on with the one above it.
bool goes_on(std::string_view line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first != line.npos && std::string_view("/*+-.)]}%@|&<>=").find(line[first]) != std::string_view::npos;
}

// Whether an operand must follow.
bool wants_more(std::string_view plain) {
  const std::size_t last = plain.find_last_not_of(' ');
  return last != plain.npos && std::string_view("/*+-%@|&<>=\\").find(plain[last]) != std::string_view::npos;
}

// Whether a statement goes on after this line. `depth`: of brackets; what stands in a string of several lines is left
// out, and a line that was cut.
bool is_open_after(const std::string& line, int& depth) {
  const std::optional<std::string> plain = without_strings(line);
  if (!plain) return depth > 0;
  depth += depth_of(*plain);
  return depth > 0 || plain->ends_with('\\');
}

std::string_view without_ends(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::optional<Statement> statement_from(std::string_view line, std::span<const std::string> below, std::size_t most) {
  const std::optional<std::string> plain = without_strings(line);
  if (!plain) return std::nullopt;
  Statement out{*plain, std::string(line.substr(0, plain->size())), plain->size()};
  for (std::size_t next = 0;; ++next) {
    const bool open = depth_of(out.plain) > 0 || wants_more(out.plain);
    if (next == below.size()) return open ? std::nullopt : std::optional(std::move(out));
    if (!open && !goes_on(below[next])) return out;
    const std::optional<std::string> more = without_strings(below[next]);
    if (!more || out.plain.size() + more->size() > most) return std::nullopt;
    if (out.plain.ends_with('\\')) out.plain.back() = out.raw.back() = ' ';
    const std::size_t indent = std::min(more->find_first_not_of(' '), more->size());
    out.plain += ' ' + more->substr(indent);
    out.raw += ' ' + below[next].substr(indent, more->size() - indent);
  }
}

StatementLines statement_at(std::span<const std::string> lines, std::size_t here) {
  StatementLines out{here, 1, false};
  if (here >= lines.size()) return out;
  // It begins at the first line whose brackets stay open up to here.
  for (std::size_t first = 0; first < here; ++first) {
    int depth = 0;
    std::size_t line = first;
    while (line < here && is_open_after(lines[line], depth)) ++line;
    if (line < here) continue;
    out.first = first;
    break;
  }
  std::size_t end = out.first;
  int depth = 0;
  while (end < lines.size() && is_open_after(lines[end], depth)) ++end;
  end = std::min(end + 1, lines.size());
  out.count = std::max(end, here + 1) - out.first;
  if (out.count <= kMostOfStatement) return out;
  out.cut = true;
  if (here - out.first >= kMostOfStatement) out.first = here - kMostOfStatement / 2;
  out.count = std::min(out.count, kMostOfStatement);
  out.count = std::min(out.count, lines.size() - out.first);
  return out;
}

std::string in_one_line(std::span<const std::string> lines) {
  std::string out;
  for (const std::string& line : lines) {
    const std::optional<std::string> plain = without_strings(line);
    std::string_view text =
        without_ends(plain ? std::string_view(line).substr(0, plain->size()) : std::string_view(line));
    if (text.ends_with('\\')) text = without_ends(text.substr(0, text.size() - 1));
    if (text.empty()) continue;
    const bool close = out.empty() || opens(out.back()) || closes(text.front()) || text.front() == '.';
    if (closes(text.front()) && out.ends_with(',')) out.pop_back();
    if (!close) out += ' ';
    out += text;
  }
  return out;
}

}  // namespace nanhunt::reports
