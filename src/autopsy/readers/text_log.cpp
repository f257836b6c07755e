// SPDX-License-Identifier: Apache-2.0
// Text: what training loops print. Of each line the numbers that have a name before them, dicts as Trainer prints
// them, what loss scalers say, tracebacks, and the command where the first line is a shell's.
#include <algorithm>
#include <string>
#include <utility>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"
#include "src/autopsy/readers/traceback.h"

namespace nanhunt::autopsy {
namespace {

bool is_name_part(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '/' || c == '-';
}
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Words before a number, at most four: "number of skipped iterations". `end` is where the number begins.
std::string name_before(std::string_view line, std::size_t end) {
  if (line.substr(0, end).ends_with("tensor(")) end -= 7;  // as PyTorch prints a number
  std::size_t at = end;
  while (at > 0 && std::string_view(" \t:=([").find(line[at - 1]) != std::string_view::npos) --at;
  const std::size_t last = at;
  std::size_t start = at;
  for (int words = 0; words < 4; ++words) {
    std::size_t word_end = start;
    while (word_end > 0 && line[word_end - 1] == ' ') --word_end;
    if (start != last && start - word_end > 1) break;  // two spaces part columns
    std::size_t word = word_end;
    while (word > 0 && is_name_part(line[word - 1])) --word;
    while (word < word_end && line[word] == '-') ++word;  // "- loss"
    if (word == word_end || !is_letter(line[word])) break;
    if (parse_number(line.substr(word, word_end - word))) break;  // "nan" of the number before
    start = word;
  }
  return std::string(line.substr(start, last - start));
}

// The name, or the end of it, that means something: "INFO train loss" is "train loss", then "loss".
std::string_view known_name(std::string_view name) {
  for (std::string_view left = name;;) {
    if (quantity_of(left) || unit_of(left)) return left;
    const std::size_t space = left.find(' ');
    if (space == std::string_view::npos) return {};
    left.remove_prefix(space + 1);
  }
}

// Where the digits of a number end that has commas between its thousands: "1,130".
std::size_t end_of_thousands(std::string_view line, std::size_t at, std::size_t end) {
  const auto is_digit = [&](std::size_t i) { return i < line.size() && line[i] >= '0' && line[i] <= '9'; };
  if (end - at > 3) return end;
  for (std::size_t i = at; i < end; ++i)
    if (!is_digit(i)) return end;
  while (end < line.size() && line[end] == ',' && is_digit(end + 1) && is_digit(end + 2) && is_digit(end + 3) && !is_digit(end + 4)) end += 4;
  return end;
}

// Without the colours of a terminal.
std::string without_colour(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] != '\x1b' || at + 1 == line.size() || line[at + 1] != '[') {
      text += line[at];
      continue;
    }
    at += 2;
    while (at < line.size() && (line[at] < '@' || line[at] > '~')) ++at;
  }
  return text;
}

bool holds_bad_number(std::string_view line) {
  for (std::size_t at = 0; at < line.size();) {
    std::size_t end = at;
    while (end < line.size() && is_name_part(line[end])) ++end;
    const std::string_view word = line.substr(at, end - at);
    if (word.size() >= 3 && word.size() <= 9) {
      const auto number = parse_number(word);
      if (number && !is_finite(*number)) return true;
    }
    at = std::max(end, at + 1);
  }
  return false;
}

void read_named_numbers(std::string_view line, LogRows& rows) {
  for (std::size_t at = 0; at < line.size();) {
    const bool begins = at == 0 || std::string_view(" \t:=|,([").find(line[at - 1]) != std::string_view::npos;
    if (!begins || std::string_view("0123456789+-.nNiI").find(line[at]) == std::string_view::npos) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && (is_name_part(line[end]) || line[end] == '+') && line[end] != '/') ++end;
    std::string_view word = line.substr(at, end - at);
    while (!word.empty() && (word.back() == '.' || word.back() == '-')) word.remove_suffix(1);
    auto number = parse_number(word);
    const bool is_share = end < line.size() && line[end] == '%';  // of a bar
    if (number && !is_share) {
      const std::string name = name_before(line, at);
      const std::string_view known = known_name(name);
      if (!known.empty() && unit_of(known)) {
        if (const std::size_t whole = end_of_thousands(line, at, end); whole != end) {
          std::string digits(line.substr(at, whole - at));
          std::erase(digits, ',');
          number = parse_number(digits);
          end = whole;
        }
      }
      if (!known.empty() && number) rows.add(known, *number);
    }
    at = std::max(end, at + 1);
  }
}

// {'loss': nan, 'grad_norm': 1.5, 'epoch': 0.1} anywhere in a line; true where there is one.
bool read_dict(std::string_view line, LogRows& rows) {
  const std::size_t open = line.find('{');
  if (open == std::string_view::npos) return false;
  std::vector<std::pair<std::string, double>> values;
  bool summary = false;
  const LooseEnd end = read_loose_json(line.substr(open), [&](std::string_view path, const LooseValue& value) {
    summary = summary || path == "train_runtime";  // the last line of Trainer holds the mean of the whole run
    const auto number =
        value.kind == LooseValue::Kind::kNumber ? std::optional(value.number) : parse_number(value.text);
    if (number && values.size() < 1024) values.emplace_back(path, *number);
  });
  if (!end.whole || values.empty()) return false;
  if (summary) return true;
  for (const auto& [name, value] : values) rows.add(name, value);
  return true;
}

// The number after `word`, if it is there.
double number_after(std::string_view line, std::string_view word) {
  std::size_t at = line.find(word);
  if (at == std::string_view::npos) return kUnknown;
  at += word.size();
  while (at < line.size() && (line[at] == ' ' || line[at] == ':')) ++at;
  std::size_t end = at;
  while (end < line.size() && (is_name_part(line[end]) || line[end] == '+')) ++end;
  std::string_view digits = line.substr(at, end - at);
  while (!digits.empty() && digits.back() == '.') digits.remove_suffix(1);
  const auto number = parse_number(digits);
  return number ? *number : kUnknown;
}

// DeepSpeed: "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768"; Apex: "Gradient
// overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0".
bool read_scaler_message(std::string_view line, EvidenceBuilder& out) {
  const bool overflow =
      line.find("OVERFLOW!") != std::string_view::npos || line.find("Gradient overflow") != std::string_view::npos;
  if (!overflow || line.find("kipping step") == std::string_view::npos) return false;
  double after = number_after(line, "reducing to");
  if (!is_finite(after)) after = number_after(line, "loss scale to");
  out.add_skipped(after);
  return true;
}

// "$ python train.py --lr 3": words as a shell parts them, without its expansions.
std::vector<std::string> command_in(std::string_view line) {
  line = trimmed(line);
  if (line.starts_with("$ ") || line.starts_with("+ ")) {
    line.remove_prefix(2);
  } else {
    return {};
  }
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = '\0';
  for (const char c : line) {
    if (std::string_view(";|&<>`$").find(c) != std::string_view::npos && quote != '\'') return {};
    if (quote != '\0') {
      if (c == quote)
        quote = '\0';
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\t') {
      if (inside) words.push_back(std::move(word));
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (quote != '\0') return {};
  if (inside) words.push_back(std::move(word));
  return words;
}

}  // namespace

void read_text_log(std::string_view file, std::string_view, EvidenceBuilder& out) {
  LogRows rows(out);
  TracebackLines tracebacks(out);
  bool first = true;
  std::string plain;
  for (std::string_view line; next_line(file, line);) {
    if (line.find('\x1b') != std::string_view::npos) line = plain = without_colour(line);
    if (!trimmed(line).empty() && std::exchange(first, false)) out.set_command(command_in(line));
    if (tracebacks.take(line) || read_scaler_message(line, out)) continue;
    if (line.starts_with("Namespace(") || trimmed(line).starts_with("args:")) continue;  // settings, not results
    if (holds_bad_number(line)) out.note_bad_line(trimmed(line));
    if (!read_dict(line, rows)) read_named_numbers(line, rows);
    if (const auto progress = find_progress(line)) rows.set_progress(*progress);
    if (rows.end()) tracebacks.end_message();
  }
  tracebacks.end();
}

}  // namespace nanhunt::autopsy
