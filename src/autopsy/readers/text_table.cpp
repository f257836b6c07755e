// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/text_table.h"

#include <algorithm>

#include "src/autopsy/loose_json.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kMostCells = 64;

// Parted by the sides of a box, by tabs, or by two spaces or more.
std::vector<std::string> cells_of(std::string_view line) {
  static constexpr std::string_view kParts[] = {"┃", "│", "\t", "  "};
  const auto parts = std::find_if(std::begin(kParts), std::end(kParts),
                                  [&](std::string_view one) { return line.find(one) != std::string_view::npos; });
  std::vector<std::string> cells;
  if (parts == std::end(kParts)) return cells;
  while (!line.empty() && cells.size() < kMostCells) {
    const std::size_t end = std::min(line.find(*parts), line.size());
    if (const std::string_view cell = trimmed(line.substr(0, end)); !cell.empty()) cells.emplace_back(cell);
    line.remove_prefix(std::min(end + parts->size(), line.size()));
  }
  return cells;
}

bool is_rule(std::string_view line) {
  return line.find_first_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string_view::npos;
}

}  // namespace

bool TextTable::take(std::string_view line, LogRows& rows) {
  const bool has_names = line.find_first_of(":=") != std::string_view::npos;  // of numbers on the line itself
  if (is_rule(line) || (head_.empty() && has_names)) return false;
  const std::vector<std::string> cells = cells_of(line);
  const auto is_number = [](const std::string& cell) { return parse_number(cell).has_value(); };
  if (head_.empty() || cells.size() != head_.size() || std::none_of(cells.begin(), cells.end(), is_number)) {
    const bool names =
        cells.size() > 1 && std::none_of(cells.begin(), cells.end(), is_number) &&
        std::any_of(cells.begin(), cells.end(), [](const std::string& cell) { return quantity_of(cell).has_value(); });
    head_ = names ? cells : std::vector<std::string>();
    return false;
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (const auto number = parse_number(cells[i])) rows.add(head_[i], *number);
  }
  return true;
}

}  // namespace nanhunt::autopsy
