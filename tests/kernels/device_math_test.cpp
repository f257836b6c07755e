// SPDX-License-Identifier: Apache-2.0
// Conversions and functions that devices share with the CPU give its bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "kernels/portable/formats.h"
#include "kernels/portable/formulas.h"
#include "nanhunt/dtype.h"

namespace nanhunt::kernels::cuda {
namespace {

// Every exponent, with mantissas that round in all ways, both signs.
std::vector<float> floats() {
  std::vector<float> out;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (std::uint32_t i = 0; i < 400; ++i) {
      const std::uint32_t mantissa = i < 200 ? i * 41943 : (i % 2 == 0 ? 0x1000u : 0x8000u) * (i / 2) + i % 3 - 1;
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        out.push_back(std::bit_cast<float>(sign | exponent << 23 | (mantissa & 0x7fffffu)));
      }
    }
  }
  return out;
}

TEST(DeviceFormats, of_16_bits_are_read_as_on_the_cpu) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto c = static_cast<std::uint16_t>(code);
    EXPECT_EQ(bits_as<std::uint32_t>(half_to_float(c)), std::bit_cast<std::uint32_t>(f16_to_f32(c))) << code;
    EXPECT_EQ(bits_as<std::uint32_t>(bfloat_to_float(c)), std::bit_cast<std::uint32_t>(bf16_to_f32(c))) << code;
  }
}

TEST(DeviceFormats, of_16_bits_are_stored_as_on_the_cpu) {
  for (const float x : floats()) {
    EXPECT_EQ(to_half(x), f32_to_f16(x)) << x;
    EXPECT_EQ(to_bfloat(x), f32_to_bf16(x)) << x;
    for (const double near : {0.0, 1e-9, -1e-9, 1e-15, -1e-15}) {
      const double y = static_cast<double>(x) * (1 + near);
      EXPECT_EQ(to_half(y), f64_to_f16(y)) << y;
      EXPECT_EQ(to_bfloat(y), f64_to_bf16(y)) << y;
    }
  }
  for (const double y :
       {65504.0, 65519.999999, 65520.0, 1e300, -1e300, 1e-300, 5e-324, 0x1p-25, 0x1.0000000000001p-25}) {
    EXPECT_EQ(to_half(y), f64_to_f16(y)) << y;
    EXPECT_EQ(to_bfloat(y), f64_to_bf16(y)) << y;
  }
}

TEST(DeviceFormats, store_integers_as_on_the_cpu) {
  for (const double x :
       {0.0, -0.5, 1.9, -1.9, 255.5, 256.0, 1e10, -1e10, 1e19, -1e19, 9.2e18, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8}) {
      std::uint64_t expected = 0, actual = 0;
      store_from_f64(dtype, &expected, x);
      store_element(dtype, &actual, 0, x);
      EXPECT_EQ(actual, expected) << x << " as " << dtype_name(dtype);
      EXPECT_EQ(load_element<double>(dtype, &actual, 0), load_as_f64(dtype, &expected));
    }
  }
}

TEST(DeviceFunctions, of_fp32_have_the_bits_of_vector_math) {
  const std::vector<float> x = floats();
  std::vector<float> expected(x.size());
  const auto same = [](float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  exp_f32(x.data(), expected.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(expected[i], exact_exp(x[i]))) << x[i];
  erf_f32(x.data(), expected.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(expected[i], exact_erf(x[i]))) << x[i];
  gelu_f32(x.data(), expected.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(expected[i], Gelu{}(x[i]))) << x[i];
  const std::vector<float> g(x.size(), 1.3f);
  gelu_gradient_f32(g.data(), x.data(), expected.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same(expected[i], GeluGradient{}(g[i], x[i]))) << x[i];
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
