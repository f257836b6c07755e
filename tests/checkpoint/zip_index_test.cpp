// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/zip_index.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace nanhunt::checkpoint {
namespace {

std::string number(std::uint64_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

struct Lies {
  std::uint64_t size = 5, header_at = 0, entries = 1, method = 0, directory_at = 0;  // directory_at: added
  bool zip64 = false;
  std::uint64_t end_record_at = 0;  // added to where the zip64 record is
};

// One entry "a" that holds "hello".
std::string archive_of(const Lies& lies) {
  std::string out = "PK\x03\x04" + std::string(22, '\0') + number(1, 2) + number(0, 2) + "a" + "hello";
  const std::uint64_t directory_at = out.size() + lies.directory_at;
  std::string extra;
  if (lies.zip64)
    extra = number(1, 2) + number(24, 2) + number(lies.size, 8) + number(lies.size, 8) + number(lies.header_at, 8);
  const auto small = [&](std::uint64_t value) { return number(lies.zip64 ? 0xffffffff : value, 4); };
  std::string directory = "PK\x01\x02" + std::string(6, '\0') + number(lies.method, 2) + std::string(8, '\0') +
                          small(lies.size) + small(lies.size) + number(1, 2) + number(extra.size(), 2) +
                          std::string(10, '\0') + small(lies.header_at) + "a" + extra;
  const std::uint64_t record_at = out.size() + directory.size();
  out += directory;
  if (lies.zip64) {
    out += "PK\x06\x06" + number(44, 8) + std::string(12, '\0') + number(lies.entries, 8) + number(lies.entries, 8) +
           number(directory.size(), 8) + number(directory_at, 8);
    out += "PK\x06\x07" + number(0, 4) + number(record_at + lies.end_record_at, 8) + number(1, 4);
  }
  out += "PK\x05\x06" + std::string(4, '\0') + number(lies.zip64 ? 0xffff : lies.entries, 2) +
         number(lies.zip64 ? 0xffff : lies.entries, 2) + small(directory.size()) + small(directory_at) + number(0, 2);
  return out;
}

class ZipIndex : public ::testing::Test {
 protected:
  Result<std::vector<ZipEntry>> read(const std::string& bytes, const std::string& before = "") {
    const std::string path = folder_.path() + "/x.pt";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << before << bytes;
    const auto file = FileBytes::open(path);
    auto out = read_zip_index(*file, before.size(), bytes.size());
    if (out && !out->empty() && out->front().problem.empty()) text_ = file->text(out->front().at, out->front().size);
    return out;
  }
  testing_support::TempDir folder_;
  std::string text_;
};

TEST_F(ZipIndex, an_entry_is_found_also_by_zip64_and_within_a_larger_file) {
  for (const bool zip64 : {false, true}) {
    for (const std::string& before : {std::string(), std::string(1000, 'x')}) {
      text_.clear();
      const auto entries = read(archive_of({.zip64 = zip64}), before);
      ASSERT_TRUE(entries.is_ok()) << entries.status().message();
      ASSERT_EQ(entries->size(), 1u);
      EXPECT_EQ(entries->front().name, "a");
      EXPECT_EQ(text_, "hello") << zip64;
    }
  }
}

TEST_F(ZipIndex, an_entry_that_lies_about_itself_has_a_problem_and_no_bytes) {
  for (const bool zip64 : {false, true}) {
    for (const Lies& lies : {Lies{.size = 5000}, Lies{.size = 0xfffffffe}, Lies{.header_at = 7},
                             Lies{.header_at = 100000}, Lies{.method = 8}}) {
      Lies one = lies;
      one.zip64 = zip64;
      const auto entries = read(archive_of(one));
      ASSERT_TRUE(entries.is_ok());
      EXPECT_NE(entries->front().problem, "");
      EXPECT_EQ(entries->front().size, 0u);
    }
  }
  const auto beyond = read(archive_of({.size = ~std::uint64_t{0}, .zip64 = true}));
  ASSERT_TRUE(beyond.is_ok());
  EXPECT_NE(beyond->front().problem, "");
}

TEST_F(ZipIndex, a_directory_that_lies_is_refused) {
  EXPECT_FALSE(read(archive_of({.entries = 2})).is_ok());
  EXPECT_FALSE(read(archive_of({.directory_at = 1})).is_ok());
  EXPECT_FALSE(read(archive_of({.directory_at = 1u << 30})).is_ok());
  EXPECT_FALSE(read(archive_of({.entries = std::uint64_t{1} << 60, .zip64 = true})).is_ok());
  EXPECT_FALSE(read(archive_of({.directory_at = ~std::uint64_t{0} - 50, .zip64 = true})).is_ok());
  EXPECT_FALSE(read(archive_of({.zip64 = true, .end_record_at = ~std::uint64_t{0} - 60})).is_ok());
}

TEST_F(ZipIndex, an_archive_cut_anywhere_is_refused) {
  for (const bool zip64 : {false, true}) {
    const std::string whole = archive_of({.zip64 = zip64});
    for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(read(whole.substr(0, n)).is_ok()) << n;
  }
}

}  // namespace
}  // namespace nanhunt::checkpoint
