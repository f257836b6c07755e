// SPDX-License-Identifier: Apache-2.0
// FORMAT.md's table of record kinds is what the declarations of their fields say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

// Type number to the rest of its line, in the table below "## Record kinds".
std::map<int, std::string> lines_of_table() {
  std::ifstream file(NANHUNT_SOURCE_DIR "/src/trace/FORMAT.md");
  EXPECT_TRUE(file.good());
  std::map<int, std::string> lines;
  std::string line;
  while (std::getline(file, line) && line != "## Record kinds") {}
  while (std::getline(file, line) && !line.starts_with("### ")) {
    if (line.starts_with("| ") && line[2] >= '0' && line[2] <= '9') lines[std::stoi(line.substr(2))] = line;
  }
  return lines;
}

TEST(FormatTable, says_of_every_kind_what_its_declaration_says) {
  const std::map<int, std::string> lines = lines_of_table();
  ASSERT_EQ(lines.size(), record_kinds().size() + 1);  // and the end chunk
  int declared = 0;
  for (const RecordKind& kind : record_kinds()) {
    const std::string start = fmt::format("| {} | {} | ", kind.type, kind.name);
    if (kind.columns == nullptr) {
      EXPECT_TRUE(lines.at(kind.type).starts_with(start)) << lines.at(kind.type);
      continue;
    }
    ++declared;
    EXPECT_EQ(lines.at(kind.type), start + kind.columns() + " |");
  }
  EXPECT_EQ(declared, 21);  // all but those with lists of structures: layouts, values, ops and evidence
}

}  // namespace
}  // namespace nanhunt::trace
