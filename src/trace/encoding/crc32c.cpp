// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace nanhunt::trace {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // reflected

// Slicing by 8: table[k][b] is the CRC of byte b followed by k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xffu];
    }
  }
  return tables;
}();

}  // namespace

std::uint32_t crc32c_table(std::span<const std::byte> data) {
  std::uint32_t crc = ~0u;
  const auto* at = reinterpret_cast<const unsigned char*>(data.data());
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint32_t low = crc ^ (std::uint32_t{at[0]} | std::uint32_t{at[1]} << 8 | std::uint32_t{at[2]} << 16 |
                                     std::uint32_t{at[3]} << 24);
    crc = kTables[7][low & 0xffu] ^ kTables[6][(low >> 8) & 0xffu] ^ kTables[5][(low >> 16) & 0xffu] ^
          kTables[4][low >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^ kTables[0][at[7]];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xffu];
  return ~crc;
}

#if defined(__x86_64__)

bool crc32c_has_hardware() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_hardware(std::span<const std::byte> data) {
  std::uint64_t crc = ~0u;
  const auto* at = reinterpret_cast<const unsigned char*>(data.data());
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; --left, ++at) narrow = _mm_crc32_u8(narrow, *at);
  return ~narrow;
}

#else

bool crc32c_has_hardware() { return false; }
std::uint32_t crc32c_hardware(std::span<const std::byte> data) { return crc32c_table(data); }

#endif

std::uint32_t crc32c(std::span<const std::byte> data) {
  return crc32c_has_hardware() ? crc32c_hardware(data) : crc32c_table(data);
}

}  // namespace nanhunt::trace
