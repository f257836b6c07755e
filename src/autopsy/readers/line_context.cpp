// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/line_context.h"

#include <algorithm>

#include "src/autopsy/log_bytes.h"
#include "src/autopsy/readers/log_row.h"

namespace nanhunt::autopsy {
namespace {

bool is_alphabetic(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool has_any_of(std::string_view text, std::initializer_list<std::string_view> phrases) {
  return std::any_of(phrases.begin(), phrases.end(),
                     [&](std::string_view phrase) { return text.find(phrase) != std::string_view::npos; });
}

// One of "nan", "inf", "fin" in any case, and not of "INFO": most lines have none.
bool has_bad_word(std::string_view line) {
  const auto at = [&](std::size_t i) { return i < line.size() ? static_cast<char>(line[i] | 0x20) : '\0'; };
  for (std::size_t i = 0; i + 2 < line.size(); ++i) {
    const char first = at(i), second = at(i + 1), third = at(i + 2);
    if (first == 'n' && second == 'a' && third == 'n') return true;
    if (first == 'i' && second == 'n' && third == 'f' && at(i + 3) != 'o') return true;
    if (first == 'f' && second == 'i' && third == 'n') return true;
  }
  return false;
}

// Whether what follows a phrase makes it the name of an option or of a count of none: " count: 0", ": False".
bool is_setting(std::string_view rest) {
  std::size_t at = 0;
  while (at < rest.size() && (is_alphabetic(rest[at]) || rest[at] == ' ' || rest[at] == '_')) ++at;
  if (at == rest.size() || (rest[at] != ':' && rest[at] != '=')) return false;
  rest = trimmed(rest.substr(at + 1));
  for (const std::string_view value : {"false", "true", "none", "off", "on", "no", "yes", "0"}) {
    if (!rest.starts_with(value)) continue;
    const std::string_view behind = rest.substr(value.size());
    if (behind.empty() || (!is_alphabetic(behind[0]) && !is_digit(behind[0]) && behind[0] != '.')) return true;
  }
  return false;
}

std::string_view word_at(std::string_view line, std::size_t at) {
  std::size_t end = at;
  while (end < line.size() && is_alphabetic(line[end])) ++end;
  return line.substr(at, end - at);
}

}  // namespace

bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || std::string_view("_/\\-").find(c) != std::string_view::npos;
  };
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool suffix = end + 1 < text.size() && text[end] == '.' && is_alphabetic(text[end + 1]);  // "inf.yaml"
    // "--grad-clip=inf" is an argument.
    const std::size_t space = text.find_last_of(" \t\"'(", at);
    const bool argument = text.substr(space == std::string_view::npos ? 0 : space + 1).starts_with("--");
    const bool left = !argument && (at == 0 || !is_part(text[at - 1]));
    if (left && !suffix && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

std::string take_rank(std::string_view& line) {
  std::string_view rest = line;
  const bool bracket = rest.starts_with('[');
  if (bracket) rest.remove_prefix(1);
  const std::string_view word = word_at(rest, 0);
  const std::string lower = lower_case(word);
  if (lower != "rank" && !(bracket && lower == "default")) return {};
  rest.remove_prefix(word.size());
  if (rest.starts_with(' ') || rest.starts_with(':')) rest.remove_prefix(1);
  std::size_t digits = 0;
  while (digits < rest.size() && digits < 6 && is_digit(rest[digits])) ++digits;
  std::string rank(rest.substr(0, digits));
  rest.remove_prefix(digits);
  if (bracket && rest.starts_with(']')) rest.remove_prefix(1);
  if (rest.starts_with(':') || rest.starts_with(" |")) rest.remove_prefix(rest.starts_with(':') ? 1 : 2);
  if (digits == 0 || (!rest.empty() && rest.front() != ' ')) return {};
  if (!rest.empty()) rest.remove_prefix(1);
  line = rest;
  return rank;
}

bool speaks_of_evaluation(std::string_view line) {
  bool first = true;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (!is_alphabetic(line[at])) continue;
    const std::string_view word = word_at(line, at);
    const char before = at > 0 ? line[at - 1] : ' ';
    const std::string_view rest = line.substr(at + word.size());
    if (std::string_view("vVeEtT").find(word[0]) != std::string_view::npos && means_evaluation(word)) {
      if ((before == '[' && rest.starts_with(']')) || (before == '(' && rest.starts_with(')'))) return true;
      const bool label = rest.starts_with(':') || rest.starts_with(" set") || rest.starts_with(" |") ||
                         rest.starts_with(" epoch") || rest.starts_with(" Epoch") || rest.starts_with(" DataLoader");
      if (first && label) return true;
    }
    // Levels and logger names stand before what a line says.
    first = first && has_any_of(word, {"INFO", "DEBUG", "WARNING", "root"});
    if (!first && line.find_first_of("[(", at) == std::string_view::npos) return false;
    at += word.size();
  }
  return false;
}

bool is_conditional(std::string_view line) {
  const std::string text = lower_case(line);
  for (const std::string_view word : {"if", "when", "whenever", "unless", "whether", "until"}) {
    if (has_word(text, word)) return true;
  }
  return false;
}

bool states_bad_number(std::string_view line) {
  if (!has_bad_word(line)) return false;
  const std::string text = lower_case(line);
  if (is_conditional(text) || has_word(text, "enabled") || has_word(text, "disabled") ||
      has_any_of(text, {"no nan", "not nan", "without nan", "check for", "checking for", "nan or inf check",
                        "detect_anomaly"})) {
    return false;
  }
  static constexpr std::string_view kPhrases[] = {
      "loss is nan",   "loss is inf",         "loss is not finite", "nan loss",         "non-finite loss",
      "infinite loss", "infinite or nan",     "loss became nan",    "gradient is nan",  "gradients are nan",
      "nan gradient",  "non-finite gradient", "nan in gradient",    "nan or inf found", "inf or nan found",
      "found nan",     "returned nan",        "result nan",         "nan detected",     "nan encountered",
      "nan in loss",   "nan values in",       "nans in loss",       "nan in the loss"};
  return std::any_of(std::begin(kPhrases), std::end(kPhrases), [&](std::string_view phrase) {
    const std::size_t at = text.find(phrase);
    if (at == std::string_view::npos) return false;
    const std::string_view before = std::string_view(text).substr(0, at);
    const bool none = before == "0 " || before.ends_with(" 0 ") || before.ends_with(":0 ");
    return !none && !is_setting(std::string_view(text).substr(at + phrase.size()));
  });
}

}  // namespace nanhunt::autopsy
