// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/sha256.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace nanhunt::testing_reports {
namespace {

using Words = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the roots of the first primes, as the standard defines them.
std::uint32_t fraction_bits(long double root) {
  return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
}

struct Constants {
  Words start{};
  std::array<std::uint32_t, 64> round{};
  Constants() {
    std::size_t found = 0;
    for (int n = 2; found < round.size(); ++n) {
      bool prime = true;
      for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      if (found < start.size()) start[found] = fraction_bits(std::sqrt(static_cast<long double>(n)));
      round[found++] = fraction_bits(std::cbrt(static_cast<long double>(n)));
    }
  }
};

void add_block(Words& state, const unsigned char* block, const Constants& constants) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 | static_cast<std::uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  Words s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t high = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const std::uint32_t one = s[7] + high + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants.round[i] + w[i];
    const std::uint32_t low = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const std::uint32_t two = low + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += s[i];
}

}  // namespace

std::string sha256_base64(std::string_view text) {
  const Constants constants;
  std::string padded(text);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  const std::uint64_t bits = static_cast<std::uint64_t>(text.size()) * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xFF);
  Words state = constants.start;
  for (std::size_t at = 0; at < padded.size(); at += 64) {
    add_block(state, reinterpret_cast<const unsigned char*>(padded.data()) + at, constants);
  }
  std::array<unsigned, 33> bytes{};  // 32 and a zero, for the last group
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = state[i / 4] >> (24 - 8 * (i % 4)) & 0xFF;
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < 33; i += 3) {
    const unsigned group = bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2];
    for (int shift = 18; shift >= 0; shift -= 6) out += kAlphabet[group >> shift & 63];
  }
  out.back() = '=';
  return out;
}

}  // namespace nanhunt::testing_reports
