// SPDX-License-Identifier: Apache-2.0
// CSV: a head with names, then rows whose cells may be empty, as Lightning writes them.
#include <algorithm>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kMostColumns = 4096;

// The next cell of a row, without its quotes; a doubled quote within stays doubled.
bool next_cell(std::string_view& row, std::string_view& cell, bool& more) {
  if (!more) return false;
  if (row.starts_with('"')) {
    std::size_t end = 1;
    while (end < row.size() && (row[end] != '"' || (end + 1 < row.size() && row[end + 1] == '"')))
      end += row[end] == '"' ? 2 : 1;
    cell = row.substr(1, std::min(end, row.size()) - 1);
    row.remove_prefix(std::min(end + 1, row.size()));
    const std::size_t comma = row.find(',');
    more = comma != std::string_view::npos;
    row.remove_prefix(more ? comma + 1 : row.size());
    return true;
  }
  const std::size_t comma = row.find(',');
  more = comma != std::string_view::npos;
  cell = row.substr(0, comma);
  row.remove_prefix(more ? comma + 1 : row.size());
  return true;
}

}  // namespace

void read_csv(std::string_view file, std::string_view, EvidenceBuilder& out) {
  std::string_view line, cell;
  if (file.starts_with("\xef\xbb\xbf")) file.remove_prefix(3);
  if (!next_line(file, line)) return;
  std::vector<std::string_view> names;
  for (bool more = true; next_cell(line, cell, more);) {
    if (names.size() == kMostColumns) {
      out.set_damage("only its first " + std::to_string(kMostColumns) + " columns were read");
      break;
    }
    names.push_back(trimmed(cell));
  }
  const auto read_into = [&](LogRows& rows) {
    for (std::string_view rest = file; next_line(rest, line);) {
      std::size_t column = 0;
      for (bool more = true; column < names.size() && next_cell(line, cell, more); ++column) {
        if (const auto number = parse_number(cell)) {
          rows.add(names[column], *number);
        } else if (trimmed(cell).empty()) {
          rows.add_missing(names[column]);
        }
      }
      rows.end();
    }
  };
  LogRows survey;
  read_into(survey);
  LogRows rows(out, survey.kinds());
  read_into(rows);
}

}  // namespace nanhunt::autopsy
