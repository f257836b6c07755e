// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Cells of RFC 4180, with nothing taken away but the quotes.
std::vector<std::vector<std::string>> cells_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows(1, {""});
  bool quoted = false;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const char c = csv[i];
    if (c == '"') {
      if (quoted && i + 1 < csv.size() && csv[i + 1] == '"') {
        rows.back().back() += csv[++i];
      } else {
        quoted = !quoted;
      }
    } else if (!quoted && c == ',') {
      rows.back().emplace_back();
    } else if (!quoted && c == '\r' && i + 1 < csv.size() && csv[i + 1] == '\n') {
      rows.push_back({""});
      ++i;
    } else {
      rows.back().back() += c;
    }
  }
  rows.pop_back();
  return rows;
}

std::string cell(const std::vector<std::vector<std::string>>& rows, std::size_t row, const std::string& column) {
  const auto& header = rows.at(0);
  const auto found = std::ranges::find(header, column);
  EXPECT_NE(found, header.end()) << column;
  return rows.at(row + 1).at(static_cast<std::size_t>(found - header.begin()));
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Export, writes_a_row_for_each_record_with_names) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome done = run_nanhunt({"export", run, "--out", "-"});
  ASSERT_EQ(done.status, 0) << done.err;
  const auto rows = cells_of(done.out);
  ASSERT_EQ(rows.size(), 17u);  // 8 steps of 2 ops, and the header
  EXPECT_EQ(cell(rows, 4, "op"), "sqrt");
  EXPECT_EQ(cell(rows, 4, "module"), "fc1");
  EXPECT_EQ(cell(rows, 4, "step"), "2");
  EXPECT_THAT(cell(rows, 4, "outputs"), HasSubstr("\"nan\":1"));
  for (const auto& row : rows) EXPECT_EQ(row.size(), rows[0].size());
}

TEST(Export, every_kind_has_a_header_also_without_rows) {
  const std::string run = make_folder();
  write_sample_trace(run, {.watched = true});
  const std::string empty = make_folder();
  write_empty_trace(empty);
  for (const char* kind : {"ops", "values", "marks", "steps", "samples", "evidence", "frees", "experiments", "drops",
                           "scaler", "histograms", "retired", "health", "norms", "unheard", "changed", "probes",
                           "captures", "notes", "collectives", "kernels", "frames", "setup"}) {
    const auto rows = cells_of(run_nanhunt({"export", run, "--kind", kind, "--out", "-"}).out);
    const auto none = cells_of(run_nanhunt({"export", empty, "--kind", kind, "--out", "-"}).out);
    ASSERT_EQ(none.size(), 1u) << kind;
    EXPECT_EQ(rows.at(0), none.at(0)) << kind;
  }
}

TEST(Export, no_cell_starts_a_formula) {
  for (const char* name : {"=HYPERLINK(\"http://a\",\"b\")", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1",
                           "\n=1", "a,\"b\""}) {
    const std::string run = make_folder();
    write_sample_trace(run, {.module = name, .watched = true});
    for (const char* kind : {"ops", "values", "marks", "norms", "probes", "health", "steps"}) {
      for (const auto& row : cells_of(run_nanhunt({"export", run, "--kind", kind, "--out", "-"}).out)) {
        for (const std::string& text : row) {
          if (text.empty() || std::string("=+-@\t\r\n").find(text.front()) == std::string::npos) continue;
          char* end = nullptr;
          std::strtod(text.c_str(), &end);
          EXPECT_EQ(*end, '\0') << kind << ": " << text;
          EXPECT_EQ(text.find("Inf"), std::string::npos) << text;
        }
      }
    }
  }
}

TEST(Export, text_without_a_formula_stays_as_it_is_and_numbers_stay_numbers) {
  const std::string run = make_folder();
  write_sample_trace(run, {.module = "a,\"b\""});
  const auto rows = cells_of(run_nanhunt({"export", run, "--out", "-"}).out);
  EXPECT_EQ(cell(rows, 0, "module"), "a,\"b\"");
  const auto steps = cells_of(run_nanhunt({"export", run, "--kind", "steps", "--out", "-"}).out);
  EXPECT_EQ(cell(steps, 2, "loss"), "NaN");
  EXPECT_EQ(cell(steps, 0, "loss"), "1.0");
  const auto values = cells_of(run_nanhunt({"export", run, "--kind", "values", "--out", "-"}).out);
  EXPECT_EQ(cell(values, 6, "min"), "-1.0");
}

TEST(Export, writes_a_whole_file_or_none) {
  const std::string run = make_folder();
  const std::string folder = make_folder();
  write_sample_trace(run);
  EXPECT_EQ(run_nanhunt({"export", run, "--kind", "steps", "--out", folder + "/steps.csv"}).status, 0);
  EXPECT_EQ(content_of(folder + "/steps.csv"), run_nanhunt({"export", run, "--kind", "steps", "--out", "-"}).out);
  // ... and what cannot be written is said
  const Outcome nowhere = run_nanhunt({"export", run, "--out", folder + "/no/such/file.csv"});
  EXPECT_EQ(nowhere.status, 6);
  EXPECT_THAT(nowhere.err, HasSubstr("could not be written"));
  EXPECT_EQ(run_nanhunt({"export", run, "--out", folder}).status, 6);
  // ... and nothing is left of it
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, ElementsAre("steps.csv"));
}

TEST(Export, a_run_that_cannot_be_read_makes_no_file) {
  const std::string folder = make_folder();
  EXPECT_EQ(run_nanhunt({"export", folder + "/none", "--out", folder + "/a.csv"}).status, 3);
  std::ofstream(folder + "/000000.nht") << "no trace at all, only text";
  EXPECT_EQ(run_nanhunt({"export", folder + "/000000.nht", "--out", folder + "/a.csv"}).status, 3);
  EXPECT_FALSE(std::filesystem::exists(folder + "/a.csv"));
  EXPECT_EQ(run_nanhunt({"export", folder, "--kind", "nothing", "--out", "-"}).status, 2);
}

}  // namespace
}  // namespace nanhunt::testing_tools
