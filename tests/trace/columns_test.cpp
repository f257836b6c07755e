// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/columns.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "src/trace/encoding/limits.h"
#include "src/trace/encoding/planes.h"

namespace nanhunt::trace {
namespace {

constexpr std::uint64_t kPlenty = 1u << 24;

std::vector<std::uint64_t> through(const std::vector<std::uint64_t>& values, Coding coding) {
  ColumnWriter writer;
  writer.column(values.data(), values.size(), coding);
  Scratch scratch;
  std::uint64_t cells = kPlenty;
  ColumnReader reader(scratch, writer.packed(), writer.plain(), cells);
  const std::uint64_t* read = reader.column(values.size(), coding);
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(cells, kPlenty - values.size());
  return {read, read + values.size()};
}

TEST(Columns, every_width_and_length_comes_back) {
  std::mt19937_64 random(3);
  for (const std::size_t n : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 255u, 256u, 511u, 512u, 513u, 4096u}) {
    for (unsigned width = 0; width <= 64; ++width) {
      std::vector<std::uint64_t> values(n);
      for (auto& value : values) value = width == 0 ? 0 : random() >> (64 - width);
      ASSERT_EQ(through(values, Coding::kPlain), values) << n << " numbers of " << width << " bits";
      ASSERT_EQ(through(values, Coding::kDelta), values) << n << " numbers of " << width << " bits";
    }
  }
}

TEST(Planes, wide_and_baseline_code_give_what_the_definition_says) {
  std::mt19937_64 random(4);
  for (std::size_t n = 0; n < 100; ++n) {
    std::vector<std::uint64_t> values(n);
    for (auto& value : values) value = random() & 0xffff00ffffff00ffu;  // bytes 1 and 5 are the same in all
    for (const bool wide : {true, false}) {
      std::array<std::vector<std::byte>, 8> planes;
      PlaneOutputs outputs{};
      PlaneInputs inputs{};
      for (std::size_t k = 0; k < 8; ++k) {
        planes[k].assign(n, std::byte{0x77});
        if (k != 1 && k != 5) inputs[k] = outputs[k] = planes[k].data();
      }
      split_planes(values.data(), n, outputs, wide);
      for (std::size_t k = 0; k < 8; ++k) {
        for (std::size_t i = 0; i < n; ++i) {
          const auto byte = outputs[k] != nullptr ? static_cast<std::byte>(values[i] >> (8 * k)) : std::byte{0x77};
          ASSERT_EQ(planes[k][i], byte) << "number " << i << " of " << n << ", byte " << k;
        }
      }
      std::vector<std::uint64_t> joined(n);
      join_planes(joined.data(), n, inputs, 0x0000'1200'0000'3400u, wide);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(joined[i], values[i] | 0x0000'1200'0000'3400u);
    }
  }
}

TEST(Columns, equal_numbers_take_bytes_that_do_not_depend_on_their_count) {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{7}, ~std::uint64_t{0}}) {
    ColumnWriter writer;
    const std::vector<std::uint64_t> values(4000, value);
    writer.column(values.data(), values.size());
    EXPECT_LE(writer.packed().size() + writer.plain().size(), 11u);
    EXPECT_EQ(through(values, Coding::kPlain), values);
  }
}

TEST(Columns, noise_goes_to_the_plain_part_and_patterns_do_not) {
  std::mt19937_64 random(5);
  ColumnWriter noise, pattern;
  std::vector<std::uint64_t> values(4096);
  for (auto& value : values) value = random();
  noise.column(values.data(), values.size());
  for (std::size_t i = 60; i < values.size(); ++i) values[i] = values[i - 60];
  pattern.column(values.data(), values.size());
  EXPECT_EQ(noise.plain().size(), 8 * 4096u);
  EXPECT_EQ(pattern.plain().size(), 0u);
}

TEST(Columns, texts_come_back_with_any_bytes) {
  const std::string a("\0\xff\n", 3), b, c = "fc1.weight";
  const std::vector<const std::string*> texts = {&a, &b, &c};
  ColumnWriter writer;
  writer.texts(texts);
  Scratch scratch;
  std::uint64_t cells = kPlenty;
  ColumnReader reader(scratch, writer.packed(), writer.plain(), cells);
  std::vector<std::string> read;
  reader.texts(3, read);
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(read, (std::vector<std::string>{a, b, c}));
}

// Reads `bytes` as one column of n numbers and says whether the reader took it.
bool takes(std::vector<int> bytes, std::size_t n, Coding coding = Coding::kPlain, std::uint64_t limit = kAnyNumber,
           std::uint64_t cells = kPlenty) {
  std::vector<std::byte> packed;
  for (const int byte : bytes) packed.push_back(static_cast<std::byte>(byte));
  Scratch scratch;
  ColumnReader reader(scratch, packed, {}, cells);
  const std::uint64_t* read = reader.column(n, coding, limit);
  if (!reader.ok()) {
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(read[i], 0u);
  }
  return reader.finished();
}

TEST(Columns, a_column_that_contradicts_itself_is_refused_and_reads_as_zeros) {
  EXPECT_TRUE(takes({1, 1, 0, 5, 6, 7}, 3));
  EXPECT_FALSE(takes({}, 3)) << "no head";
  EXPECT_FALSE(takes({9}, 3)) << "nine planes";
  EXPECT_FALSE(takes({1 | 16, 1, 0, 5, 6, 7}, 3)) << "delta where plain was asked for";
  EXPECT_FALSE(takes({1, 1, 0, 5, 6, 7}, 3, Coding::kDelta)) << "plain where delta was asked for";
  EXPECT_FALSE(takes({1 | 32, 1, 0, 5, 6, 7}, 3)) << "unknown head bit";
  EXPECT_FALSE(takes({1, 3, 0, 5, 6, 7}, 3)) << "unknown tag";
  EXPECT_FALSE(takes({1, 1, 0, 5, 6}, 3)) << "plane too short";
  EXPECT_FALSE(takes({1, 2, 0, 5, 6, 7}, 3)) << "plane said to be in the plain part";
  EXPECT_FALSE(takes({1, 0, 0}, 3)) << "constant missing";
  EXPECT_FALSE(takes({1, 1, 0, 5, 6, 7, 8}, 3)) << "bytes left over";
  EXPECT_FALSE(takes({1, 1, 0, 5, 6, 7}, 3, Coding::kPlain, 6)) << "above the limit";
  EXPECT_TRUE(takes({1, 1, 0, 5, 6, 7}, 3, Coding::kPlain, 7));
  EXPECT_FALSE(takes({1, 1, 0, 5, 6, 7}, 3, Coding::kPlain, kAnyNumber, 2)) << "over the budget of numbers";
}

TEST(Columns, list_lengths_over_the_cap_are_refused) {
  ColumnWriter writer;
  const std::vector<std::uint64_t> lengths(3, kMaxItems / 2);
  writer.column(lengths.data(), lengths.size());
  Scratch scratch;
  std::uint64_t cells = kPlenty;
  ColumnReader reader(scratch, writer.packed(), writer.plain(), cells);
  std::size_t total = 99;
  reader.counts(3, total);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(total, 0u);
}

}  // namespace
}  // namespace nanhunt::trace
