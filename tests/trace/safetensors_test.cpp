// SPDX-License-Identifier: Apache-2.0
#include "src/trace/run/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/temp_dir.h"

namespace nanhunt::trace {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

Safetensors sample() {
  Safetensors out;
  out.arrays.push_back({"tensor1", DType::kF16, {2, 3}, bytes_of("abcdefghijkl")});
  out.arrays.push_back({"labels \"of\" \xC3\xA9", DType::kI64, {1}, bytes_of("12345678")});
  out.arrays.push_back({"scalar", DType::kF32, {}, bytes_of("wxyz")});
  out.arrays.push_back({"none", DType::kBF16, {0, 4}, {}});
  out.metadata = {{"op", "addcdiv_"}, {"format", "nanhunt.capture"}};
  return out;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file made of a header and `data` bytes.
std::string forged(const std::string& header, std::size_t data = 0) {
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  return out + header + std::string(data, '\0');
}

TEST(Safetensors, what_is_written_is_read_back) {
  const testing_support::TempDir dir;
  const std::string path = dir.path() + "/a.safetensors";
  ASSERT_TRUE(write_safetensors(path, sample()).is_ok());
  const auto read = read_safetensors(path, 1 << 20);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_EQ(read->metadata, sample().metadata);
  ASSERT_EQ(read->arrays.size(), 4u);
  for (const NamedArray& wanted : sample().arrays) {
    EXPECT_NE(std::find(read->arrays.begin(), read->arrays.end(), wanted), read->arrays.end()) << wanted.name;
  }
}

TEST(Safetensors, numbers_start_at_a_multiple_of_8_and_only_the_owner_may_read) {
  const testing_support::TempDir dir;
  const std::string path = dir.path() + "/a.safetensors";
  ASSERT_TRUE(write_safetensors(path, sample()).is_ok());
  const std::string text = file_text(path);
  EXPECT_EQ(static_cast<unsigned char>(text[0]) % 8, 0);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(Safetensors, a_file_or_link_in_the_way_is_left_alone) {
  const testing_support::TempDir dir;
  const std::string path = dir.path() + "/a.safetensors", target = dir.path() + "/target";
  std::ofstream(target) << "mine";
  std::filesystem::create_symlink(target, path);
  EXPECT_EQ(write_safetensors(path, sample()).code(), StatusCode::kWriteFailed);
  EXPECT_EQ(read_safetensors(path, 1 << 20).status().code(), StatusCode::kUnreadable);
  EXPECT_EQ(file_text(target), "mine");
}

TEST(Safetensors, arrays_that_cannot_be_written_are_refused) {
  const testing_support::TempDir dir;
  Safetensors twice = sample(), torn = sample(), foreign = sample();
  twice.arrays[1].name = twice.arrays[0].name;
  torn.arrays[0].sizes = {2, 4};
  foreign.arrays[0].name = "\xff\xfe";
  int n = 0;
  for (const Safetensors& bad : {twice, torn, foreign}) {
    const std::string path = dir.path() + "/" + std::to_string(n++);
    EXPECT_EQ(write_safetensors(path, bad).code(), StatusCode::kUsage);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(Safetensors, a_hostile_header_is_refused) {
  const std::string entry = R"("dtype":"F16","shape":[2],"data_offsets":[0,4])";
  const std::vector<std::string> hostile = {
      "",
      "short",
      std::string(8, '\xff'),
      forged("not json"),
      forged("[]"),
      forged(std::string(100000, '[')),
      forged(R"({"a":[]})"),
      forged(R"({"a":{"dtype":"F16"}})"),
      forged(R"({"a":{"dtype":"F17","shape":[2],"data_offsets":[0,4]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[-2],"data_offsets":[0,4]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[2.5],"data_offsets":[0,4]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[4,0]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,4]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}})", 4),
      forged(R"({"a":{"dtype":"F16","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4),
      forged("{\"a\":{" + entry + "},\"b\":{" + entry + "}}", 4),
      forged(R"({"__metadata__":{"a":1}})"),
      forged(R"({"__metadata__":"a"})"),
  };
  for (const std::string& bytes : hostile) {
    const auto read = parse_safetensors(bytes, "it");
    EXPECT_FALSE(read.is_ok()) << bytes.substr(0, 80);
    EXPECT_EQ(read.status().code(), StatusCode::kUnreadable);
  }
  EXPECT_TRUE(parse_safetensors(forged("{\"a\":{" + entry + "}}", 4), "it").is_ok());
}

TEST(Safetensors, a_file_larger_than_allowed_is_not_read) {
  const testing_support::TempDir dir;
  const std::string path = dir.path() + "/a.safetensors";
  ASSERT_TRUE(write_safetensors(path, sample()).is_ok());
  EXPECT_EQ(read_safetensors(path, 20).status().code(), StatusCode::kUnreadable);
}

TEST(Safetensors, mutated_files_never_crash) {
  const testing_support::TempDir dir;
  const std::string path = dir.path() + "/a.safetensors";
  ASSERT_TRUE(write_safetensors(path, sample()).is_ok());
  const std::string whole = file_text(path);
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 5 == 0) bytes.resize(random() % bytes.size());
    if (const auto read = parse_safetensors(bytes, "it")) {
      for (const NamedArray& array : read->arrays) EXPECT_LE(array.bytes.size(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace nanhunt::trace
