// SPDX-License-Identifier: Apache-2.0
// Every path against the scalar conversions of nanhunt/dtype.h, NaN bits included.
#include "kernels/cpu/convert.h"

#include <bit>
#include <cstring>
#include <random>

#include "nanhunt/dtype.h"
#include "tests/kernels/stats_support.h"

namespace nanhunt::kernels {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// Bit patterns of fp32 that matter to 16-bit rounding: all exponents, mantissas around every tie.
std::vector<float> adversarial_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low :
         {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  return values;
}

TEST(Convert, every_16_bit_code_widens_the_same_on_every_path) {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  std::vector<float> half(codes.size());
  std::vector<float> brain(codes.size());
  for (const Simd simd : testing_support::supported_paths()) {
    convert_path(simd).f16_to_f32(codes.data(), half.data(), codes.size());
    convert_path(simd).bf16_to_f32(codes.data(), brain.data(), codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      ASSERT_EQ(bits_of(half[i]), bits_of(f16_to_f32(codes[i]))) << simd_name(simd) << " " << i;
      ASSERT_EQ(bits_of(brain[i]), bits_of(bf16_to_f32(codes[i]))) << simd_name(simd) << " " << i;
    }
  }
}

TEST(Convert, adversarial_floats_narrow_the_same_on_every_path) {
  const std::vector<float> values = adversarial_floats();
  std::vector<std::uint16_t> half(values.size());
  std::vector<std::uint16_t> brain(values.size());
  for (const Simd simd : testing_support::supported_paths()) {
    convert_path(simd).f32_to_f16(values.data(), half.data(), values.size());
    convert_path(simd).f32_to_bf16(values.data(), brain.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(half[i], f32_to_f16(values[i])) << simd_name(simd) << " " << std::hex << bits_of(values[i]);
      ASSERT_EQ(brain[i], f32_to_bf16(values[i])) << simd_name(simd) << " " << std::hex << bits_of(values[i]);
    }
  }
}

TEST(Convert, every_length_and_start_writes_exactly_its_elements) {
  constexpr std::uint16_t kGuard16 = 0xABCD;
  constexpr float kGuard32 = -123.0f;
  const std::vector<float> floats(100, 1.5f);
  const std::vector<std::uint16_t> codes(100, f32_to_f16(1.5f));
  for (const Simd simd : testing_support::supported_paths()) {
    for (std::size_t count = 0; count < 70; ++count) {
      for (const std::size_t start : {0u, 1u, 7u}) {
        std::vector<std::uint16_t> narrow(100, kGuard16);
        std::vector<float> wide(100, kGuard32);
        convert_path(simd).f32_to_f16(floats.data() + start, narrow.data() + start, count);
        convert_path(simd).f16_to_f32(codes.data() + start, wide.data() + start, count);
        for (std::size_t i = 0; i < 100; ++i) {
          const bool inside = i >= start && i < start + count;
          ASSERT_EQ(narrow[i], inside ? codes[0] : kGuard16) << simd_name(simd) << " " << count << " " << i;
          ASSERT_EQ(wide[i], inside ? 1.5f : kGuard32) << simd_name(simd) << " " << count << " " << i;
        }
        convert_path(simd).f32_to_bf16(floats.data() + start, narrow.data() + start, count);
        convert_path(simd).bf16_to_f32(narrow.data() + start, wide.data() + start, count);
        for (std::size_t i = 0; i < 100; ++i) {
          ASSERT_EQ(wide[i], i >= start && i < start + count ? 1.5f : kGuard32) << simd_name(simd) << " " << count;
        }
      }
    }
  }
}

TEST(Convert, the_default_path_converts) {
  const float values[] = {1.0f, 65520.0f, 0x1p-25f, -0.0f};
  std::uint16_t codes[4];
  float back[4];
  convert_f32_to_f16(values, codes, 4);
  EXPECT_EQ(codes[0], 0x3C00);
  EXPECT_EQ(codes[1], 0x7C00);
  EXPECT_EQ(codes[2], 0x0000);
  EXPECT_EQ(codes[3], 0x8000);
  convert_f16_to_f32(codes, back, 4);
  EXPECT_EQ(back[0], 1.0f);
  convert_f32_to_bf16(values, codes, 4);
  convert_bf16_to_f32(codes, back, 4);
  EXPECT_EQ(back[1], 65536.0f);
}

}  // namespace
}  // namespace nanhunt::kernels
