// SPDX-License-Identifier: Apache-2.0
// Files of JSON: Trainer's state, a line for each entry, the last values of a run, its settings.
#include <optional>
#include <string>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/line_context.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {
namespace {

std::string bad_json(std::size_t at) {
  return "it is no valid JSON at byte " + std::to_string(at) + ": the rest was not read";
}

void add_value(LogRows& rows, std::string_view path, const LooseValue& value) {
  if (value.kind == LooseValue::Kind::kNumber) {
    rows.add(path, value.number);
  } else if (value.kind == LooseValue::Kind::kText) {
    if (const auto number = parse_number(value.text)) rows.add(path, *number);
    if (names_split(path) && means_evaluation(value.text)) rows.set_evaluation();
  } else if (value.text == "null" || value.text == "None") {
    rows.add_missing(path);
  }
}

}  // namespace

void read_trainer_state(std::string_view file, std::string_view, EvidenceBuilder& out) {
  constexpr std::string_view kHistory = "log_history.";
  LogRows rows(out);
  std::string entry;
  const LooseEnd end = read_loose_json(file, [&](std::string_view path, const LooseValue& value) {
    if (!path.starts_with(kHistory)) return;
    path.remove_prefix(kHistory.size());
    const std::size_t dot = path.find('.');
    if (dot == std::string_view::npos) return;
    if (path.substr(0, dot) != entry) {
      rows.end();
      entry = path.substr(0, dot);
    }
    const std::string_view key = path.substr(dot + 1);
    if (key != "train_loss") add_value(rows, key, value);  // the mean of the whole run, in its last entry
  });
  rows.end();
  if (!end.whole) out.set_damage(bad_json(end.length));
}

namespace {

bool is_index(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// One document: columns ({"loss": [2.5, NaN]}), as Keras keeps its history, or a list of rows.
void read_document(std::string_view file, EvidenceBuilder& out) {
  LogRows rows(out);
  std::string row;
  read_loose_json(file, [&](std::string_view path, const LooseValue& value) {
    const std::size_t first = path.find('.'), last = path.rfind('.');
    if (first == std::string_view::npos) {
      add_value(rows, path, value);
    } else if (is_index(path.substr(0, first))) {
      if (path.substr(0, first) != row) rows.end();
      row = path.substr(0, first);
      add_value(rows, path.substr(first + 1), value);
    } else if (is_index(path.substr(last + 1)) && value.kind != LooseValue::Kind::kWord) {
      const auto index = parse_number(path.substr(last + 1));
      const auto number =
          value.kind == LooseValue::Kind::kNumber ? std::optional(value.number) : parse_number(value.text);
      if (index && number) out.add(path.substr(0, last), *index, Unit::kEntry, *number);
    } else {
      add_value(rows, path, value);
    }
  });
  rows.end();
}

bool is_document(std::string_view file) {
  file = trimmed(file);
  if (!file.starts_with('[') && !file.starts_with('{')) return false;
  const LooseEnd end = read_loose_json(file, [](std::string_view, const LooseValue&) {});
  return end.whole && end.length == file.size();
}

}  // namespace

void read_json_lines(std::string_view file, std::string_view, EvidenceBuilder& out) {
  if (is_document(file)) return read_document(file, out);
  std::uint64_t lines = 0, bad = 0, first_bad = 0;
  const auto read_into = [&](LogRows& rows) {
    lines = bad = 0;
    for (std::string_view rest = file, line; next_line(rest, line);) {
      ++lines;
      line = trimmed(line);
      if (line.empty()) continue;
      const LooseEnd end =
          read_loose_json(line, [&](std::string_view path, const LooseValue& value) { add_value(rows, path, value); });
      rows.end();
      if (end.whole && end.length == line.size()) continue;
      if (bad++ == 0) first_bad = lines;
    }
  };
  read_table(out, read_into);
  if (bad != 0) {
    out.set_damage(std::to_string(bad) + " lines are no valid JSON, the first of them line " +
                   std::to_string(first_bad));
  }
}

void read_json_summary(std::string_view file, std::string_view, EvidenceBuilder& out) {
  LogRows rows(out);
  const LooseEnd end =
      read_loose_json(file, [&](std::string_view path, const LooseValue& value) { add_value(rows, path, value); });
  rows.end();
  if (!end.whole) out.set_damage(bad_json(end.length));
}

void read_json_settings(std::string_view file, std::string_view, EvidenceBuilder& out) {
  const LooseEnd end =
      read_loose_json(file, [&](std::string_view path, const LooseValue& value) { out.add_setting(path, value.text); });
  if (!end.whole) out.set_damage(bad_json(end.length));
}

void read_yaml_settings(std::string_view file, std::string_view, EvidenceBuilder& out) {
  std::string parent;
  for (std::string_view line; next_line(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || trimmed(line).starts_with("#")) continue;
    std::string_view key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    if (key.starts_with("- ")) key.remove_prefix(2);
    if (value.empty()) {
      parent = key.substr(0, 100);
      continue;
    }
    if (value.size() > 1 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front()) {
      value = value.substr(1, value.size() - 2);
    }
    out.add_setting(key == "value" ? std::string_view(parent) : key, value);  // W&B: "lr:" and below it "value: 0.1"
  }
}

}  // namespace nanhunt::autopsy
