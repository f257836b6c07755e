// SPDX-License-Identifier: Apache-2.0
// Traces of every released format version stay readable. tests/golden/trace/README.md says how a pair is made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "src/trace/encoding/limits.h"
#include "tests/trace/batch_text.h"
#include "tests/trace/golden_text.h"

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;
const std::string kFolder = std::string(NANHUNT_SOURCE_DIR) + "/tests/golden/trace";
const std::string kNewest = fmt::format("v{}.{}", trace::kFormatMajor, trace::kFormatMinor);

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(GoldenTraces, every_version_reads_as_its_twin_says) {
  std::set<std::string> versions;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.is_directory()) versions.insert(entry.path().filename().string());
  }
  ASSERT_TRUE(versions.contains(kNewest)) << "no golden trace of the version that is written";
  for (const std::string& version : versions) {
    const auto text = golden_text(kFolder + "/" + version);
    ASSERT_TRUE(text.is_ok()) << version << ": " << text.status().message();
    EXPECT_EQ(*text, text_of_file(kFolder + "/" + version + ".txt")) << version;
  }
}

TEST(GoldenTraces, hold_every_kind_of_row_and_more_than_one_segment) {
  const std::string text = text_of_file(kFolder + "/" + kNewest + ".txt");
  for (const char* kind :
       {"string ",      "layout ",     "value ", "op ",      "mark ",      "samples ",    "step ",   "evidence ",
        "end of life ", "experiment ", "drop ",  "scaler ",  "histogram ", "retired ",    "health ", "norm ",
        "unheard ",     "changed ",    "probe ", "capture ", "note ",      "collective ", "kernel "}) {
    EXPECT_NE(text.find(std::string("\n") + kind), std::string::npos) << kind;
  }
  EXPECT_TRUE(fs::exists(kFolder + "/" + kNewest + "/rank-00000/attempt-0/000001.nht"));
}

}  // namespace
}  // namespace nanhunt::trace_testing
