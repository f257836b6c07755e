// SPDX-License-Identifier: Apache-2.0
// Statements of Python's that take several lines, as far as their brackets show them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nanhunt::reports {

inline constexpr std::size_t kMostOfStatement = 6;  // lines of it that are shown

constexpr bool opens(char c) { return c == '(' || c == '[' || c == '{'; }
constexpr bool closes(char c) { return c == ')' || c == ']' || c == '}'; }

// A statement from one of its lines on, in one line.
struct Statement {
  std::string plain;           // blank where strings stand, without comments
  std::string raw;             // as written, character by character beside `plain`
  std::size_t first_line = 0;  // how much of it stands on the first line
};
// nullopt: its end is not among the lines, or beyond `most` characters.
std::optional<Statement> statement_from(std::string_view line, std::span<const std::string> below, std::size_t most);

// The lines of the statement that holds line `here`, of which at most kMostOfStatement are taken; `here` is among them.
struct StatementLines {
  std::size_t first = 0, count = 1;
  bool cut = false;  // it has more
};
StatementLines statement_at(std::span<const std::string> lines, std::size_t here);

// Those lines in one, as a person would write it.
std::string in_one_line(std::span<const std::string> lines);

}  // namespace nanhunt::reports
