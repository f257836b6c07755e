// SPDX-License-Identifier: Apache-2.0
// Every path against the double functions of the C library, and bit for bit against the scalar path.
#include "kernels/cpu/vector_math.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/kernels/stats_support.h"

namespace nanhunt::kernels {
namespace {

using Loop = void (*)(const float*, float*, std::size_t);

// All signs and exponents, mantissas spread.
std::vector<float> all_kinds() {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 14771) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (float x = -120; x < 120; x += 0.001F) values.push_back(x);
  return values;
}

// Distance from the true value in units of the last place that fp32 has there.
double error_in_units(float got, double expected) {
  int exponent = 0;
  std::frexp(static_cast<float>(expected), &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(static_cast<double>(got) - expected) / unit;
}

void expect_within(Loop loop, double (*reference)(double), double units, const char* what) {
  const std::vector<float> x = all_kinds();
  std::vector<float> out(x.size());
  loop(x.data(), out.data(), x.size());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = reference(static_cast<double>(x[i]));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(out[i])) << what;
    } else if (std::isinf(static_cast<float>(expected))) {
      ASSERT_TRUE(std::isinf(out[i])) << what << " of " << x[i];
    } else {
      worst = std::max(worst, error_in_units(out[i], expected));
    }
  }
  EXPECT_LE(worst, units) << what;
}

TEST(VectorMath, exp_is_rounded_all_but_correctly_and_erf_within_a_unit_and_a_fifth) {
  for (const Simd simd : testing_support::supported_paths()) {
    const VectorMathPath& path = vector_math_path(simd);
    expect_within(path.exp, [](double x) { return std::exp(x); }, 0.505, "exp");
    expect_within(path.erf, [](double x) { return std::erf(x); }, 1.2, "erf");
  }
}

TEST(VectorMath, gelu_and_its_gradient_are_their_formulas_in_fp32) {
  // given: a formula with libm's erf and exp, whose own errors are as large
  std::vector<float> x, g;
  for (float v = -8; v < 8; v += 0.0007F) {
    x.push_back(v);
    g.push_back(1.5F + v / 7);
  }
  std::vector<float> out(x.size()), gradient(x.size());
  gelu_f32(x.data(), out.data(), x.size());
  gelu_gradient_f32(g.data(), x.data(), gradient.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), cdf = 0.5 * (1 + std::erf(v * std::sqrt(0.5)));
    const double slope = cdf + v * std::exp(-0.5 * v * v) / std::sqrt(2 * M_PI);
    // 1 + erf loses what is below 2^-24.
    EXPECT_NEAR(static_cast<double>(out[i]), v * cdf, 2e-7 * std::max(1.0, std::fabs(v)));
    EXPECT_NEAR(static_cast<double>(gradient[i]), static_cast<double>(g[i]) * slope, 6e-7 * std::fabs(g[i]));
  }
}

TEST(VectorMath, every_path_gives_the_same_bits_for_every_length_and_in_place) {
  const std::vector<float> x = all_kinds();
  const auto bits = [](const std::vector<float>& values) {
    std::vector<std::uint32_t> out;
    for (float v : values) out.push_back(std::isnan(v) ? 0x7FC00000 : std::bit_cast<std::uint32_t>(v));
    return out;
  };
  const VectorMathPath& scalar = vector_math_path(Simd::kScalar);
  for (const Simd simd : testing_support::supported_paths()) {
    const VectorMathPath& path = vector_math_path(simd);
    for (const auto& [loop, reference] :
         {std::pair{path.exp, scalar.exp}, {path.erf, scalar.erf}, {path.gelu, scalar.gelu}}) {
      std::vector<float> expected(x.size()), got = x;
      reference(x.data(), expected.data(), x.size());
      loop(got.data(), got.data(), got.size());
      ASSERT_EQ(bits(got), bits(expected)) << simd_name(simd);
      for (std::size_t count = 0; count < 40; ++count) {
        std::vector<float> few(count + 1, 7.0F);
        loop(x.data() + 100000, few.data(), count);
        EXPECT_EQ(few[count], 7.0F);
        few.pop_back();
        EXPECT_EQ(bits(few), bits({expected.begin() + 100000, expected.begin() + 100000 + static_cast<long>(count)}));
      }
    }
    std::vector<float> expected(x.size()), got(x.size());
    scalar.gelu_gradient(x.data(), x.data(), expected.data(), x.size());
    path.gelu_gradient(x.data(), x.data(), got.data(), x.size());
    EXPECT_EQ(bits(got), bits(expected)) << simd_name(simd);
  }
}

TEST(VectorMath, edges) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0F, -0.0F, inf, -inf, 88.72283F, 88.72284F, -103.97207F, -103.97209F, 6, -6};
  std::vector<float> out(x.size());
  exp_f32(x.data(), out.data(), x.size());
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 1);
  EXPECT_EQ(out[2], inf);
  EXPECT_EQ(out[3], 0);
  EXPECT_TRUE(std::isfinite(out[4]));
  EXPECT_EQ(out[5], inf);
  EXPECT_EQ(out[6], std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(out[7], 0);
  erf_f32(x.data(), out.data(), x.size());
  EXPECT_EQ(out[0], 0);
  EXPECT_TRUE(std::signbit(out[1]));
  EXPECT_EQ(out[2], 1);
  EXPECT_EQ(out[3], -1);
  EXPECT_EQ(out[8], 1);
  EXPECT_EQ(out[9], -1);
}

}  // namespace
}  // namespace nanhunt::kernels
