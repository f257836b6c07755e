// SPDX-License-Identifier: Apache-2.0
// Each stored result is the fp32 result, rounded once. Exact for single elementwise ops.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Every kind of number, and enough of them to cross a chunk: the bulk, tail and strided paths all run.
std::vector<double> sample(DType dtype, int shift) {
  const float specials[] = {0.0F,     -0.0F,       1.0F,   -1.0F,  6e-8F,    -6e-8F,    1e-5F,  0.0009765625F,
                            3.14159F, 11.0859375F, 255.9F, 256.0F, 65504.0F, -65504.0F, kInf,   -kInf,
                            kNan,     1e-40F,      -17.5F, 0.5F,   1e38F,    -3e38F,    1e-20F, 88.5F};
  std::vector<double> values;
  for (int i = 0; i < 1300; ++i) {
    const int k = (i * 7 + shift * i / 24 + shift) % 24;
    values.push_back(round_to(dtype, i % 3 == 2 ? std::sin(i + shift) * i : specials[k]));
  }
  return values;
}

void expect_same(const std::vector<double>& got, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = std::isnan(expected[i])
                          ? std::isnan(got[i])
                          : std::bit_cast<std::uint64_t>(got[i]) == std::bit_cast<std::uint64_t>(expected[i]);
    ASSERT_TRUE(same) << what << ", element " << i << ": got " << got[i] << ", expected " << expected[i];
  }
}

struct Unary {
  const char* name;
  Tensor (*op)(const Tensor&);
  float (*reference)(float);
};
const Unary kUnary[] = {
    {"neg", neg, [](float x) { return -x; }},
    {"abs", abs, [](float x) { return std::fabs(x); }},
    {"exp", exp, [](float x) { return std::exp(x); }},
    {"log", log, [](float x) { return std::log(x); }},
    {"sqrt", sqrt, [](float x) { return std::sqrt(x); }},
    {"rsqrt", rsqrt, [](float x) { return 1.0F / std::sqrt(x); }},
    {"relu", relu, [](float x) { return std::isnan(x) ? x
                                        : x > 0       ? x
                                        : x == 0      ? x
                                                      : 0.0F; }},
    {"tanh", tanh, [](float x) { return std::tanh(x); }},
    {"sigmoid", sigmoid, [](float x) { return 1.0F / (1.0F + std::exp(-x)); }},
    {"square", [](const Tensor& x) { return pow(x, 2); }, [](float x) { return x * x; }},
    {"cube", [](const Tensor& x) { return pow(x, 3); }, [](float x) { return x * x * x; }},
    {"pow", [](const Tensor& x) { return pow(x, 1.7); }, [](float x) { return std::pow(x, 1.7F); }},
    {"add_number", [](const Tensor& x) { return add(x, 1e-8); }, [](float x) { return x + 1e-8F; }},
    {"sub_number", [](const Tensor& x) { return sub(x, 0.1); }, [](float x) { return x - 0.1F; }},
    {"mul_number", [](const Tensor& x) { return mul(x, 0.999); }, [](float x) { return x * 0.999F; }},
    {"div_number", [](const Tensor& x) { return div(x, 3.0); }, [](float x) { return x / 3.0F; }},
    {"clamp", [](const Tensor& x) { return clamp(x, -2, 1e5); },
     [](float x) { return std::isnan(x) ? x : std::fmin(std::fmax(x, -2.0F), 1e5F); }},
};
struct Binary {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  float (*reference)(float, float);
};
const Binary kBinary[] = {
    {"add", [](const Tensor& a, const Tensor& b) { return add(a, b); }, [](float a, float b) { return a + b; }},
    {"add_alpha", [](const Tensor& a, const Tensor& b) { return add(a, b, 0.1); },
     [](float a, float b) {
       const float scaled = 0.1F * b;
       return a + scaled;
     }},
    {"sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); }, [](float a, float b) { return a - b; }},
    {"mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); }, [](float a, float b) { return a * b; }},
    {"div", [](const Tensor& a, const Tensor& b) { return div(a, b); }, [](float a, float b) { return a / b; }},
};

class Rounding : public ::testing::TestWithParam<DType> {};

TEST_P(Rounding, of_unary_ops_is_that_of_the_fp32_result) {
  const std::vector<double> values = sample(GetParam(), 0);
  const Tensor dense = Tensor::from_values(values, {13, 100}, GetParam());
  for (const Unary& u : kUnary) {
    std::vector<double> expected;
    for (double x : values) {
      expected.push_back(round_to(GetParam(), static_cast<double>(u.reference(static_cast<float>(x)))));
    }
    expect_same(u.op(dense).to_vector(), expected, u.name);
    expect_same(u.op(strided_copy(dense)).to_vector(), expected, std::string(u.name) + " strided");
  }
}

TEST_P(Rounding, of_binary_ops_is_that_of_the_fp32_result) {
  const std::vector<double> a = sample(GetParam(), 0), b = sample(GetParam(), 5);
  const Tensor left = Tensor::from_values(a, {13, 100}, GetParam());
  const Tensor right = Tensor::from_values(b, {13, 100}, GetParam());
  const Tensor row = select(right, 0, 4);
  for (const Binary& op : kBinary) {
    std::vector<double> expected, expected_row;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<float>(a[i]);
      expected.push_back(round_to(GetParam(), static_cast<double>(op.reference(x, static_cast<float>(b[i])))));
      const auto y = static_cast<float>(b[400 + i % 100]);
      expected_row.push_back(round_to(GetParam(), static_cast<double>(op.reference(x, y))));
    }
    expect_same(op.op(left, right).to_vector(), expected, op.name);
    expect_same(op.op(strided_copy(left), right).to_vector(), expected, std::string(op.name) + " strided");
    expect_same(op.op(left, row).to_vector(), expected_row, std::string(op.name) + " row");
  }
}

TEST_P(Rounding, of_updates_is_that_of_the_fp32_result) {
  const DType dtype = GetParam();
  const std::vector<double> p = sample(dtype, 1), m = sample(dtype, 2), v = sample(dtype, 3);
  const Tensor a = Tensor::from_values(m, {13, 100}, dtype), b = Tensor::from_values(v, {13, 100}, dtype);
  const auto check = [&](const char* name, auto update, auto reference) {
    std::vector<double> expected;
    for (std::size_t i = 0; i < p.size(); ++i) {
      expected.push_back(
          round_to(dtype, static_cast<double>(reference(static_cast<float>(p[i]), static_cast<float>(m[i]),
                                                        static_cast<float>(v[i])))));
    }
    Tensor dense = Tensor::from_values(p, {13, 100}, dtype), strided = strided_copy(dense);
    update(dense);
    update(strided);
    expect_same(dense.to_vector(), expected, name);
    expect_same(strided.to_vector(), expected, std::string(name) + " strided");
  };
  check(
      "add_", [&](Tensor& x) { add_(x, a, -0.3); },
      [](float x, float y, float) {
        const float scaled = -0.3F * y;
        return x + scaled;
      });
  check(
      "mul_", [](Tensor& x) { mul_(x, 0.9); }, [](float x, float, float) { return x * 0.9F; });
  check(
      "lerp_", [&](Tensor& x) { lerp_(x, a, 0.1); },
      [](float x, float y, float) {
        const float way = 0.1F * (y - x);
        return x + way;
      });
  check(
      "addcmul_", [&](Tensor& x) { addcmul_(x, a, b, 0.001); },
      [](float x, float y, float z) {
        const float product = 0.001F * y * z;
        return x + product;
      });
  check(
      "addcdiv_", [&](Tensor& x) { addcdiv_(x, a, b, -0.01); },
      [](float x, float y, float z) {
        const float quotient = -0.01F * y / z;
        return x + quotient;
      });
}

TEST_P(Rounding, of_conversions_happens_once) {
  const std::vector<double> wide = {65520 - 0x1p-20, 0x1p-25 + 0x1p-60, 1e-8, 1.0 / 3, 1e300, -1e-320};
  const Tensor x = Tensor::from_values(wide, {6}, DType::kF64);
  std::vector<double> expected;
  for (double value : wide) expected.push_back(round_to(GetParam(), value));
  expect_same(to(x, GetParam()).to_vector(), expected, "fp64");
}

TEST_P(Rounding, of_reductions_and_products_happens_once) {
  // given: halves of 2048 + 1, which a 16-bit accumulator could not hold
  const Tensor ones = Tensor::full({3000}, 1, GetParam());
  EXPECT_EQ(sum(ones).item(), round_to(GetParam(), 3000));
  EXPECT_EQ(mean(ones).item(), 1);
  EXPECT_EQ(norm(ones).item(), round_to(GetParam(), std::sqrt(3000.0F)));
  const Tensor product = matmul(reshape(ones, {1, 3000}), reshape(ones, {3000, 1}));
  EXPECT_EQ(product.item(), round_to(GetParam(), 3000));
}

INSTANTIATE_TEST_SUITE_P(formats, Rounding, ::testing::Values(DType::kF16, DType::kBF16, DType::kF32),
                         [](const auto& given) { return std::string(dtype_name(given.param)); });

TEST(Promotion, follows_categories_and_ignores_scalar_tensors_of_the_same) {
  const auto make = [](DType dtype, Shape sizes) { return Tensor::full(std::move(sizes), 1, dtype); };
  const auto result = [](const Tensor& a, const Tensor& b) { return add(a, b).dtype(); };
  EXPECT_EQ(result(make(DType::kF16, {2}), make(DType::kBF16, {2})), DType::kF32);
  EXPECT_EQ(result(make(DType::kF16, {2}), make(DType::kF32, {2})), DType::kF32);
  EXPECT_EQ(result(make(DType::kF16, {2}), make(DType::kF64, {1})), DType::kF64);
  EXPECT_EQ(result(make(DType::kF16, {2}), make(DType::kF32, {})), DType::kF16);
  EXPECT_EQ(result(make(DType::kF16, {}), make(DType::kF32, {})), DType::kF32);
  EXPECT_EQ(result(make(DType::kI64, {2}), make(DType::kF16, {})), DType::kF16);
  EXPECT_EQ(result(make(DType::kBF16, {2}), make(DType::kBool, {2})), DType::kBF16);
}

TEST(Promotion, rounds_a_scalar_tensor_to_the_common_format_but_not_a_number) {
  // An eps held in a tensor becomes 0 in fp16; as a plain number it lives in op math (though the sum may round).
  const Tensor x = Tensor::full({1}, 0, DType::kF16);
  EXPECT_EQ(div(Tensor::full({1}, 1, DType::kF16), add(x, Tensor::full({}, 1e-7, DType::kF32))).item(),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(mul(add(x, Tensor::full({}, 1e-8, DType::kF32)), 1e8).item(), 0);
  EXPECT_EQ(mul(Tensor::full({1}, 60000, DType::kF16), 1e-8).item(), round_to(DType::kF16, 60000 * 1e-8F));
}

}  // namespace
}  // namespace nanhunt::engine::testing
