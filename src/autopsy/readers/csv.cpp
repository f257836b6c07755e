// SPDX-License-Identifier: Apache-2.0
// Tables of a row per line: a head with names, then cells that may be empty, as Lightning writes them; parted by
// commas, semicolons or tabs.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kMostColumns = 4096;

// The next cell of a row, without its quotes; a doubled quote within stays doubled.
bool next_cell(std::string_view& row, char parts, std::string_view& cell, bool& more) {
  if (!more) return false;
  if (row.starts_with('"')) {
    std::size_t end = 1;
    while (end < row.size() && (row[end] != '"' || (end + 1 < row.size() && row[end + 1] == '"')))
      end += row[end] == '"' ? 2 : 1;
    cell = row.substr(1, std::min(end, row.size()) - 1);
    row.remove_prefix(std::min(end + 1, row.size()));
    const std::size_t comma = row.find(parts);
    more = comma != std::string_view::npos;
    row.remove_prefix(more ? comma + 1 : row.size());
    return true;
  }
  const std::size_t comma = row.find(parts);
  more = comma != std::string_view::npos;
  cell = row.substr(0, comma);
  row.remove_prefix(more ? comma + 1 : row.size());
  return true;
}

char separator_of(std::string_view head) {
  char best = ',';
  for (const char one : {';', '\t'}) {
    if (std::count(head.begin(), head.end(), one) > std::count(head.begin(), head.end(), best)) best = one;
  }
  return best;
}

// A name as tools that export curves write it: of "run-3 - train/loss" what is behind the run; of TensorBoard's
// "Value" the tag, which the file is called after. Extremes that stand beside a curve have none.
std::string name_of(std::string_view cell, std::string_view path) {
  if (cell.ends_with("__MIN") || cell.ends_with("__MAX")) return {};
  if (const std::size_t run = cell.rfind(" - "); run != std::string_view::npos)
    return std::string(cell.substr(run + 3));
  const std::size_t tag = path.rfind("tag-");
  if (cell != "Value" || tag == std::string_view::npos) return std::string(cell);
  const std::string_view name = path.substr(tag + 4);
  return std::string(name.substr(0, name.rfind('.')));
}

// Numbers beside semicolons may have decimal commas.
std::optional<double> number_in(std::string_view cell, char parts) {
  if (parts != ';' || cell.size() > 64 || cell.find(',') == std::string_view::npos) return parse_number(cell);
  std::string digits(cell);
  std::replace(digits.begin(), digits.end(), ',', '.');
  return parse_number(digits);
}

}  // namespace

void read_csv(std::string_view file, std::string_view path, EvidenceBuilder& out) {
  std::string_view line, cell;
  if (file.starts_with("\xef\xbb\xbf")) file.remove_prefix(3);
  if (!next_line(file, line)) return;
  const char parts = separator_of(line);
  std::vector<std::string> names;
  for (bool more = true; next_cell(line, parts, cell, more);) {
    if (names.size() == kMostColumns) {
      out.set_damage("only its first " + std::to_string(kMostColumns) + " columns were read");
      break;
    }
    names.push_back(name_of(trimmed(cell), path));
  }
  std::size_t short_rows = 0;
  const auto read_into = [&](LogRows& rows) {
    short_rows = 0;
    for (std::string_view rest = file; next_line(rest, line);) {
      if (trimmed(line).empty()) continue;
      std::size_t column = 0;
      for (bool more = true; column < names.size() && next_cell(line, parts, cell, more); ++column) {
        if (const auto number = number_in(cell, parts)) {
          rows.add(names[column], *number);
        } else if (trimmed(cell).empty()) {
          rows.add_missing(names[column]);
        }
      }
      rows.end();
      short_rows += column < names.size() ? 1u : 0u;
    }
  };
  read_table(out, read_into);
  if (short_rows != 0) {
    out.set_damage(std::to_string(short_rows) + (short_rows == 1 ? " row has" : " rows have") +
                   " fewer cells than its head has names");
  }
}

}  // namespace nanhunt::autopsy
