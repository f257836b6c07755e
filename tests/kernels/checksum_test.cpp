// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace nanhunt::kernels {
namespace {

std::vector<unsigned char> noise(std::size_t bytes) {
  std::mt19937_64 random(7);
  std::vector<unsigned char> out(bytes);
  for (unsigned char& byte : out) byte = static_cast<unsigned char>(random());
  return out;
}

TEST(Checksum, every_path_gives_the_same_bits) {
  const std::vector<unsigned char> data = noise(64 * 33 + 1);
  for (const Simd simd : kAllSimd) {
    if (!simd_supported(simd)) continue;
    for (std::size_t stripes : {0u, 1u, 2u, 33u}) {
      ChecksumLanes expected, got;
      checksum_stripes(Simd::kScalar)(data.data() + 1, stripes, expected);  // not aligned
      checksum_stripes(simd)(data.data() + 1, stripes, got);
      EXPECT_EQ(std::memcmp(&expected, &got, sizeof got), 0) << simd_name(simd) << ", " << stripes << " stripes";
    }
  }
}

TEST(Checksum, any_flipped_bit_gives_another) {
  for (std::size_t bytes : {1u, 2u, 7u, 8u, 9u, 64u, 100u, 1024u}) {
    std::vector<unsigned char> data = noise(bytes);
    const std::uint64_t before = checksum_bytes(data.data(), bytes);
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      data[bit / 8] = static_cast<unsigned char>(data[bit / 8] ^ 1u << bit % 8);
      EXPECT_NE(checksum_bytes(data.data(), bytes), before) << "bit " << bit << " of " << bytes << " bytes";
      data[bit / 8] = static_cast<unsigned char>(data[bit / 8] ^ 1u << bit % 8);
    }
    EXPECT_EQ(checksum_bytes(data.data(), bytes), before);
  }
}

TEST(Checksum, tells_constants_lengths_and_orders) {
  std::set<std::uint64_t> seen;
  std::size_t made = 0;
  for (std::size_t bytes : {0u, 1u, 64u, 128u, 4096u, 32768u, 32769u, 100000u}) {
    for (const int fill : {0x00, 0x01, 0x3C, 0x80, 0xFF}) {
      const std::vector<unsigned char> data(bytes, static_cast<unsigned char>(fill));
      seen.insert(checksum_bytes(data.data(), bytes));
      made += bytes == 0 ? (fill == 0 ? 1 : 0) : 1;
    }
  }
  EXPECT_EQ(seen.size(), made);
  std::vector<unsigned char> data = noise(70000);
  const std::uint64_t before = checksum_bytes(data.data(), data.size());
  std::swap_ranges(data.begin(), data.begin() + 64, data.begin() + 64);  // two stripes
  EXPECT_NE(checksum_bytes(data.data(), data.size()), before);
  std::swap_ranges(data.begin(), data.begin() + 64, data.begin() + 64);
  std::swap_ranges(data.begin(), data.begin() + 32768, data.begin() + 32768);  // two blocks
  EXPECT_NE(checksum_bytes(data.data(), data.size()), before);
}

TEST(Checksum, of_a_view_is_that_of_its_elements_in_order) {
  // given: 5 x 7 numbers, seen plain and through gaps
  std::vector<float> plain(35), gaps(35 * 3, -1.0f);
  std::iota(plain.begin(), plain.end(), 1.0f);
  for (std::size_t i = 0; i < plain.size(); ++i) gaps[3 * i] = plain[i];
  const std::int64_t sizes[] = {5, 7}, dense[] = {7, 1}, apart[] = {21, 3};
  // when
  const std::uint64_t expected = checksum_elements({plain.data(), DType::kF32, sizes, dense});
  // then: what lies between does not count, what belongs to it does
  EXPECT_EQ(expected, checksum_bytes(plain.data(), 35 * sizeof(float)));
  EXPECT_EQ(checksum_elements({gaps.data(), DType::kF32, sizes, apart}), expected);
  gaps[1] = 5;
  EXPECT_EQ(checksum_elements({gaps.data(), DType::kF32, sizes, apart}), expected);
  gaps[3] = 5;
  EXPECT_NE(checksum_elements({gaps.data(), DType::kF32, sizes, apart}), expected);
}

TEST(Checksum, of_no_elements_is_that_of_nothing) {
  const std::int64_t sizes[] = {0, 7}, strides[] = {7, 1};
  EXPECT_EQ(checksum_elements({nullptr, DType::kF32, sizes, strides}), checksum_bytes(nullptr, 0));
}

}  // namespace
}  // namespace nanhunt::kernels
