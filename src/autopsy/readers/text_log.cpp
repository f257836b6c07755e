// SPDX-License-Identifier: Apache-2.0
// Text: what training loops print. Of each line the numbers that have a name before them, dicts as Trainer prints
// them, what loss scalers say, tracebacks, and the command where the first line is a shell's.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "src/autopsy/log_bytes.h"
#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/line_context.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"
#include "src/autopsy/readers/text_table.h"
#include "src/autopsy/readers/traceback.h"

namespace nanhunt::autopsy {
namespace {

bool is_name_part(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '/' || c == '-';
}
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// " iterations: 3" behind "nan": how many steps were so.
bool counts_steps(std::string_view rest) { return rest.starts_with(" iter") || rest.starts_with(" step"); }

// "|    loss        | 2.5    |", a line for each number, as stable-baselines prints them.
bool is_table_line(std::string_view line) {
  line = trimmed(line);
  return line.starts_with('|') && line.ends_with('|') && std::count(line.begin(), line.end(), '|') == 3;
}

// Words before a number, at most four: "number of skipped iterations". `end` is where the number begins.
std::string name_before(std::string_view line, std::size_t end) {
  if (line.substr(0, end).ends_with("tensor(")) end -= 7;  // as PyTorch prints a number
  std::size_t at = end;
  const bool cell = is_table_line(line);
  while (at > 0 && std::string_view(cell ? " \t:=([|" : " \t:=([").find(line[at - 1]) != std::string_view::npos) --at;
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
    // "nan" of the number before; but "number of nan iterations" is a name.
    if (parse_number(line.substr(word, word_end - word)) && !counts_steps(line.substr(word_end))) break;
    start = word;
  }
  return std::string(line.substr(start, last - start));
}

// What a name before a number means: "INFO train loss" is "train loss", then "loss". Remembered, for lines repeat them.
class KnownNames {
 public:
  struct Known {
    std::size_t skip = 0;  // characters of it that mean nothing
    bool quantity = false, unit = false;

    bool any() const { return quantity || unit; }
  };

  const Known& find(const std::string& name) {
    if (const auto there = known_.find(name); there != known_.end()) return there->second;
    if (known_.size() >= kMostNames) known_.clear();
    return known_.emplace(name, look_up(name)).first->second;
  }

 private:
  static constexpr std::size_t kMostNames = 4096;

  static Known look_up(std::string_view name) {
    Known out;
    while (true) {
      const std::string_view left = name.substr(out.skip);
      out.quantity = quantity_of(left).has_value();
      out.unit = unit_of(left).has_value();
      const std::size_t space = left.find(' ');
      if (out.any() || space == std::string_view::npos) return out;
      out.skip += space + 1;
    }
  }

  std::unordered_map<std::string, Known> known_;  // only ever asked by name
};

// Where a number ends that has commas between its thousands: "1,130", "4,200.5". One comma without a point behind its
// digits may also be a decimal comma, but in a count.
std::size_t end_of_thousands(std::string_view line, std::size_t at, std::size_t end, bool is_count) {
  const auto digit_at = [&](std::size_t i) { return i < line.size() && is_digit(line[i]); };
  if (end - at > 3) return end;
  for (std::size_t i = at; i < end; ++i)
    if (!digit_at(i)) return end;
  std::size_t last = end, groups = 0;
  while (last < line.size() && line[last] == ',' && digit_at(last + 1) && digit_at(last + 2) && digit_at(last + 3) &&
         !digit_at(last + 4)) {
    last += 4;
    ++groups;
  }
  const bool point = groups != 0 && last < line.size() && line[last] == '.' && digit_at(last + 1);
  if (!is_count && groups < 2 && !point) return end;
  if (point) {
    ++last;
    while (digit_at(last)) ++last;
  }
  return last;
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
  if (line.find_first_of("nNiI") == std::string_view::npos) return false;
  for (std::size_t at = 0; at < line.size();) {
    std::size_t end = at;
    while (end < line.size() && is_name_part(line[end])) ++end;
    const std::string_view word = line.substr(at, end - at);
    if (word.size() >= 3 && word.size() <= 9) {
      const auto number = parse_number(word);
      const std::string_view rest = line.substr(end);
      const bool is_name = rest.starts_with(':') || counts_steps(rest);  // "abort on nan: True"
      if (number && !is_finite(*number) && !is_name) return true;
    }
    at = std::max(end, at + 1);
  }
  return false;
}

void read_named_numbers(std::string_view line, KnownNames& names, LogRows& rows) {
  std::string named;  // the name of the number before, to which one in brackets belongs: "Loss 2.1 (2.3)"
  for (std::size_t at = 0; at < line.size();) {
    const bool begins = at == 0 || std::string_view(" \t:=|,([").find(line[at - 1]) != std::string_view::npos;
    if (!begins || std::string_view("0123456789+-.nNiI").find(line[at]) == std::string_view::npos) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && (is_name_part(line[end]) || line[end] == '+' || line[end] == '#') && line[end] != '/')
      ++end;
    std::string_view word = line.substr(at, end - at);
    while (!word.empty() && (word.back() == '.' || word.back() == '-')) word.remove_suffix(1);
    auto number = parse_number(word);
    const bool is_share = end < line.size() && line[end] == '%';                                 // of a bar
    const bool is_key = end < line.size() && line[end] == ':' && number && !is_finite(*number);  // "abort on nan: True"
    if (number && !is_share && !is_key) {
      const bool in_brackets = line[at - (at > 0 ? 1 : 0)] == '(' || line.substr(0, at).ends_with("( ");
      const std::string name = name_before(line, at);
      const KnownNames::Known& known = names.find(name);
      const std::string_view means = std::string_view(name).substr(known.skip);
      if (known.any()) {
        if (const std::size_t whole = end_of_thousands(line, at, end, known.unit); whole != end) {
          std::string digits(line.substr(at, whole - at));
          std::erase(digits, ',');
          number = parse_number(digits);
          end = whole;
        }
      }
      if (known.any() && number) rows.add(means, *number);
      if (!known.any() && in_brackets && !named.empty() && end < line.size() && line[end] == ')') {
        rows.add(named + " avg", *number);
      }
      named = known.quantity ? means : std::string_view();
    }
    at = std::max(end, at + 1);
  }
}

// {'loss': nan, 'grad_norm': 1.5, 'epoch': 0.1} anywhere in a line; true where there is one.
bool read_dict(std::string_view line, LogRows& rows) {
  const std::size_t open = line.find('{');
  if (open == std::string_view::npos) return false;
  std::vector<std::pair<std::string, double>> values;
  bool summary = false, evaluation = false;
  const LooseEnd end = read_loose_json(line.substr(open), [&](std::string_view path, const LooseValue& value) {
    summary = summary || path == "train_runtime";  // the last line of Trainer holds the mean of the whole run
    const auto number =
        value.kind == LooseValue::Kind::kNumber ? std::optional(value.number) : parse_number(value.text);
    if (number && values.size() < 1024) values.emplace_back(path, *number);
    evaluation = evaluation || (names_split(path) && means_evaluation(value.text));
  });
  if (!end.whole || values.empty()) return false;
  if (summary) return true;
  for (const auto& [name, value] : values) rows.add(name, value);
  if (evaluation) rows.set_evaluation();
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

// "CUDA_VISIBLE_DEVICES=0" before a command, for which no program is needed but a shell, or env.
bool is_assignment(std::string_view word) {
  const std::size_t equals = word.find('=');
  return equals != std::string_view::npos && equals != 0 && is_letter(word[0]) &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](char c) { return is_letter(c) || is_digit(c); });
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
  if (!words.empty() && is_assignment(words.front())) words.insert(words.begin(), "env");
  return words;
}

// A line that loads weights to go on from.
bool says_resumes(std::string_view line) {
  if (line.find("heckpoint") == std::string_view::npos && line.find("ckpt") == std::string_view::npos) return false;
  const std::string text = lower_case(line);
  const bool loads = text.find("resum") != std::string::npos || text.find("load") != std::string::npos ||
                     text.find("restor") != std::string::npos;
  return loads;
}

// Lines whose numbers are no results: settings, what is only mentioned, a search for a learning rate, which ends where
// the loss diverges.
bool holds_no_results(std::string_view line, bool bad_number) {
  return line.starts_with("Namespace(") || trimmed(line).starts_with("args:") || (bad_number && is_conditional(line)) ||
         line.find("Finding best initial lr") != std::string_view::npos;
}

}  // namespace

void read_text_log(std::string_view file, std::string_view, EvidenceBuilder& out) {
  constexpr std::size_t kMostRanks = 64;
  std::map<std::string, LogRows> streams;  // of each rank, whose lines stand between those of others
  TracebackLines tracebacks(out);
  TextTable table;
  KnownNames names;
  bool first = true;
  std::string plain;
  for (std::string_view line; next_line(file, line);) {
    if (line.find('\x1b') != std::string_view::npos) line = plain = without_colour(line);
    if (!trimmed(line).empty() && std::exchange(first, false)) out.set_command(command_in(line));
    std::string rank = take_rank(line);
    if (tracebacks.take(line) || read_scaler_message(line, out)) continue;
    if (streams.size() >= kMostRanks && !streams.contains(rank)) rank.clear();
    LogRows& rows = streams.try_emplace(rank, out, RowKinds{}, rank).first->second;
    const bool bad_number = holds_bad_number(line);
    if (holds_no_results(line, bad_number)) continue;
    if (says_resumes(line)) out.note(&Evidence::said_resume, trimmed(line));
    if (states_bad_number(line)) out.note(&Evidence::said_bad, trimmed(line));
    if (bad_number) out.note(&Evidence::nan_line, trimmed(line));
    if (!table.take(line, rows) && !read_dict(line, rows)) {
      read_named_numbers(line, names, rows);
      // A bar beside a dict of Trainer's counts the steps of the run, not of an epoch.
      if (const auto progress = find_progress(line)) rows.set_progress(*progress);
    }
    if (speaks_of_evaluation(line)) rows.set_evaluation();
    if (is_table_line(line)) continue;  // its row goes on
    if (rows.end()) tracebacks.end_message();
  }
  for (auto& [rank, rows] : streams) rows.end();
  tracebacks.end();
}

}  // namespace nanhunt::autopsy
