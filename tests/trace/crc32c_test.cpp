// SPDX-License-Identifier: Apache-2.0
// Vectors: RFC 3720 (iSCSI), appendix B.4, and the check value of the CRC catalogue.
#include "src/trace/encoding/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

namespace nanhunt::trace {
namespace {

struct Vector {
  std::vector<std::byte> data;
  std::uint32_t crc;
};

std::vector<Vector> published_vectors() {
  std::vector<std::byte> ascending(32), descending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = descending[31 - i] = static_cast<std::byte>(i);
  const auto check = std::as_bytes(std::span(std::string_view("123456789")));
  std::vector<std::byte> scsi_read(48);
  const std::pair<std::size_t, int> set[] = {{0, 0x01},  {1, 0xc0},  {16, 0x14}, {22, 0x04},
                                             {27, 0x14}, {31, 0x18}, {32, 0x28}, {40, 0x02}};
  for (const auto& [at, byte] : set) scsi_read[at] = static_cast<std::byte>(byte);
  return {{{}, 0},
          {std::vector<std::byte>(32, std::byte{0}), 0x8a9136aa},
          {std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43},
          {ascending, 0x46dd794e},
          {descending, 0x113fdb5c},
          {scsi_read, 0xd9963a56},
          {{check.begin(), check.end()}, 0xe3069283}};
}

TEST(Crc32c, table_agrees_with_published_vectors) {
  for (const Vector& vector : published_vectors()) EXPECT_EQ(crc32c_table(vector.data), vector.crc);
}

TEST(Crc32c, hardware_agrees_with_published_vectors) {
  if (!crc32c_has_hardware()) GTEST_SKIP() << "this processor has no CRC-32C instruction";
  for (const Vector& vector : published_vectors()) EXPECT_EQ(crc32c_hardware(vector.data), vector.crc);
}

TEST(Crc32c, table_and_chosen_way_agree_at_every_length_and_alignment) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(300);
  std::ranges::generate(data, [&] { return static_cast<std::byte>(random()); });
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t length = 0; begin + length <= data.size(); ++length) {
      const std::span<const std::byte> part(data.data() + begin, length);
      ASSERT_EQ(crc32c(part), crc32c_table(part)) << begin << " " << length;
    }
  }
}

}  // namespace
}  // namespace nanhunt::trace
