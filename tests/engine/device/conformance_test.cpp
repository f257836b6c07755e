// SPDX-License-Identifier: Apache-2.0
// Every op of the engine on a device gives the CPU's bits, forward and backward, in every format: the kernels of
// kernels/cuda, run by the CPU in any order of elements and rows.
#include <cmath>
#include <limits>
#include <set>

#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "tests/engine/device/device_support.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

using testing_support::Order;

// These capture masks of the CPU; a test of its own has them on the device.
const std::set<std::string> kCaptures = {"scaled_dot_product_attention_causal",
                                         "scaled_dot_product_attention_everything"};

struct Results {
  Tensor out;
  std::vector<Tensor> gradients;
};

// The op, and the gradients of a sum in which every element of the result has a weight of its own.
Results run(const OpCase& c, const std::vector<Tensor>& inputs, const Device& device) {
  Results results;
  const bool differentiable = c.differentiable;
  results.out = c.call(inputs);
  if (!differentiable || !results.out.requires_grad()) return results;
  const Tensor weights = spread_tensor(results.out.sizes(), 0.5, 1.5, results.out.dtype()).on(device);
  sum(mul(results.out, weights)).backward();
  for (const Tensor& input : inputs) results.gradients.push_back(input.grad());
  return results;
}

struct Given {
  OpCase op;
  DType dtype;
};

std::vector<Tensor> inputs_in(const OpCase& c, DType dtype) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : c.inputs) inputs.push_back(is_floating(input.dtype()) ? same_as(input, dtype) : input);
  return inputs;
}

std::vector<Given> givens() {
  std::vector<Given> list;
  std::vector<OpCase> cases = op_cases();
  for (OpCase& c : inplace_cases()) cases.push_back(std::move(c));
  for (const OpCase& c : cases) {
    if (kCaptures.count(c.label) != 0) continue;
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) list.push_back({c, dtype});
  }
  return list;
}

class OnDevice : public ::testing::TestWithParam<Given> {};

TEST_P(OnDevice, gives_the_bits_of_the_cpu) {
  const auto& [c, dtype] = GetParam();
  const Results expected = run(c, inputs_in(c, dtype), Device{});
  for (const Order order : {Order::kForwards, Order::kBackwards, Order::kShuffled}) {
    ScopedEmulatedDevice emulated;
    emulated.device.order = order;
    std::vector<Tensor> inputs;
    for (const Tensor& input : inputs_in(c, dtype)) inputs.push_back(same_on(input, kEmulated));
    const Results actual = run(c, inputs, kEmulated);
    EXPECT_EQ(actual.out.device(), kEmulated);
    EXPECT_TRUE(same_values(expected.out, actual.out));
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (std::size_t i = 0; i < actual.gradients.size(); ++i) {
      EXPECT_TRUE(same_values(expected.gradients[i], actual.gradients[i])) << "gradient of input " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(every_op, OnDevice, ::testing::ValuesIn(givens()), [](const auto& given) {
  return given.param.op.label + "_" + std::string(dtype_name(given.param.dtype));
});

// Values that go wrong, next to each other in every way.
std::vector<double> odd_values() {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  return {0.0,   -0.0,    1.0,      -1.0,     0.5,    -2.0, 3.0,   65504.0, -65504.0, 6e-8,  -6e-8, 1e-40,
          1e-7,  -3e-5,   256.0,    300.0,    -300.0, 88.7, -88.7, 104.0,   -104.0,   11.1,  -11.1, 3e38,
          -3e38, kInf,    -kInf,    kNaN,     1e4,    2e4,  5.9,   -5.9,    0.921875, 0.93,  -0.93, 1e-3};
}

Tensor as_image(const Tensor& matrix) { return reshape(matrix, {1, 1, matrix.size(0), matrix.size(1)}); }

TEST(OnDeviceOddValues, of_every_elementwise_op_give_the_bits_of_the_cpu) {
  const std::vector<double> odd = odd_values();
  const auto n = static_cast<std::int64_t>(odd.size());
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<std::string, Binary>> ops = {
      {"add", [](const Tensor& a, const Tensor& b) { return add(a, b, 0.7); }},
      {"sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); }},
      {"mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); }},
      {"div", [](const Tensor& a, const Tensor& b) { return div(a, b); }},
      {"addcmul", [](const Tensor& a, const Tensor& b) { return addcmul(a, b, a, 0.3); }},
      {"addcdiv", [](const Tensor& a, const Tensor& b) { return addcdiv(a, b, a, 0.3); }},
      {"where", [](const Tensor& a, const Tensor& b) { return where(gt(a, 0.5), a, b); }},
      {"eq", [](const Tensor& a, const Tensor&) { return to(eq(a, 0.1), DType::kF32); }},
      {"relu", [](const Tensor& a, const Tensor&) { return relu(a); }},
      {"gelu", [](const Tensor& a, const Tensor&) { return gelu(a); }},
      {"gelu_tanh", [](const Tensor& a, const Tensor&) { return gelu(a, GeluForm::kTanh); }},
      {"silu", [](const Tensor& a, const Tensor&) { return silu(a); }},
      {"exp", [](const Tensor& a, const Tensor&) { return exp(a); }},
      {"log", [](const Tensor& a, const Tensor&) { return log(a); }},
      {"expm1", [](const Tensor& a, const Tensor&) { return expm1(a); }},
      {"log10", [](const Tensor& a, const Tensor&) { return log10(a); }},
      {"log2", [](const Tensor& a, const Tensor&) { return log2(a); }},
      {"log1p", [](const Tensor& a, const Tensor&) { return log1p(a); }},
      {"sinh", [](const Tensor& a, const Tensor&) { return sinh(a); }},
      {"cosh", [](const Tensor& a, const Tensor&) { return cosh(a); }},
      {"tan", [](const Tensor& a, const Tensor&) { return tan(a); }},
      {"asin", [](const Tensor& a, const Tensor&) { return asin(a); }},
      {"acos", [](const Tensor& a, const Tensor&) { return acos(a); }},
      {"softplus", [](const Tensor& a, const Tensor&) { return softplus(a); }},
      {"atan2", [](const Tensor& a, const Tensor& b) { return atan2(a, b); }},
      {"prelu", [](const Tensor& a, const Tensor& b) { return prelu(a, reshape(narrow(b, 0, 0, 1), {b.size(1)})); }},
      {"huber", [](const Tensor& a, const Tensor& b) { return huber_loss(a, b, 0.8); }},
      {"logsumexp", [](const Tensor& a, const Tensor&) { return logsumexp(a, 1); }},
      {"sqrt", [](const Tensor& a, const Tensor&) { return sqrt(a); }},
      {"rsqrt", [](const Tensor& a, const Tensor&) { return rsqrt(a); }},
      {"abs", [](const Tensor& a, const Tensor&) { return abs(a); }},
      {"tanh", [](const Tensor& a, const Tensor&) { return tanh(a); }},
      {"sigmoid", [](const Tensor& a, const Tensor&) { return sigmoid(a); }},
      {"clamp", [](const Tensor& a, const Tensor&) { return clamp(a, -2, 100); }},
      {"clamp_nan", [](const Tensor& a, const Tensor&) { return clamp(a, std::nan(""), 100); }},
      {"pow", [](const Tensor& a, const Tensor&) { return pow(a, 1.7); }},
      {"smooth_l1", [](const Tensor& a, const Tensor& b) { return smooth_l1_loss(a, b, 0.8); }},
      {"mse", [](const Tensor& a, const Tensor& b) { return mse_loss(a, b); }},
      {"bce", [](const Tensor& a, const Tensor& b) { return binary_cross_entropy_with_logits(a, b); }},
      {"softmax", [](const Tensor& a, const Tensor&) { return softmax(a, 1); }},
      {"log_softmax", [](const Tensor& a, const Tensor&) { return log_softmax(a, 0); }},
      {"norm", [](const Tensor& a, const Tensor&) { return norm(a, 1); }},
      {"sum", [](const Tensor& a, const Tensor&) { return sum(a, 0); }},
      {"layer_norm", [](const Tensor& a, const Tensor&) { return layer_norm(a, {}, {}); }},
      {"layer_norm in its format",
       [](const Tensor& a, const Tensor&) { return layer_norm(a, {}, {}, 1e-5, NormStatistics::kInput); }},
      {"max_pool2d", [](const Tensor& a, const Tensor&) { return max_pool2d(as_image(a), 3, 2, 1); }},
      {"avg_pool2d", [](const Tensor& a, const Tensor&) { return avg_pool2d(as_image(a), 3, 2, 1); }},
      {"upsample_nearest2d", [](const Tensor& a, const Tensor&) { return upsample_nearest2d(as_image(a), 3); }},
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    // Every pair of them.
    std::vector<double> left, right;
    for (const double x : odd) {
      for (const double y : odd) {
        left.push_back(x);
        right.push_back(y);
      }
    }
    const auto make = [&](const std::vector<double>& values) {
      return Tensor::from_values(values, {n, n}, dtype).set_requires_grad(true);
    };
    for (const auto& [name, op] : ops) {
      SCOPED_TRACE(name + std::string(" in ") + std::string(dtype_name(dtype)));
      const auto both = [&op](const Tensor& a, const Tensor& b, const Device& device) {
        const Tensor out = op(a, b);
        if (out.requires_grad()) {
          const Tensor weights = spread_tensor(out.sizes(), 0.5, 1.5, out.dtype()).on(device);
          sum(mul(out, weights)).backward();
        }
        return out;
      };
      Tensor a = make(left), b = make(right);
      const Tensor expected = both(a, b, Device{});
      ScopedEmulatedDevice emulated;
      const Tensor x = same_on(a, kEmulated), y = same_on(b, kEmulated);
      const Tensor actual = both(x, y, kEmulated);
      EXPECT_TRUE(same_values(expected, actual));
      EXPECT_TRUE(same_values(a.grad(), x.grad()));
      EXPECT_TRUE(same_values(b.grad(), y.grad()));
    }
  }
}

TEST(OnDeviceFormats, every_conversion_gives_the_bits_of_the_cpu) {
  std::vector<double> values = odd_values();
  for (int i = 0; i < 4000; ++i) {
    values.push_back(std::ldexp(1 + 0.37 * (i % 7) + 1e-4 * i, i % 300 - 150) * (i % 2 == 0 ? 1 : -1));
    values.push_back(std::ldexp(1025 + 2 * (i % 2048), -20 + i % 30));  // ties of fp16
  }
  const Tensor wide = Tensor::from_values(values, {static_cast<std::int64_t>(values.size())}, DType::kF64);
  ScopedEmulatedDevice emulated;
  for (const DType from : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI64, DType::kBool}) {
    const Tensor source = to(wide, from), there = source.on(kEmulated);
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI64, DType::kBool}) {
      SCOPED_TRACE(std::string(dtype_name(from)) + " to " + std::string(dtype_name(dtype)));
      EXPECT_TRUE(same_values(to(source, dtype), to(there, dtype)));
    }
  }
}

TEST(OnDeviceSums, of_any_length_give_the_bits_of_the_cpu) {
  for (const std::int64_t length : {1, 15, 16, 17, 1023, 1024, 1025, 5000, 16385, 70001, 66 * 1024, 131 * 1024 + 7}) {
    const Tensor row = spread_tensor({length}, -3, 7, DType::kF32);
    const Tensor rows = length < 20000 ? spread_tensor({3, length}, -3, 7, DType::kF32) : Tensor();
    ScopedEmulatedDevice emulated;
    emulated.device.order = Order::kShuffled;
    SCOPED_TRACE(length);
    EXPECT_TRUE(same_values(sum(row), sum(row.on(kEmulated))));
    EXPECT_TRUE(same_values(norm(row), norm(row.on(kEmulated))));
    if (!rows.defined()) continue;
    EXPECT_TRUE(same_values(mean(rows, 1), mean(rows.on(kEmulated), 1)));
    EXPECT_TRUE(same_values(softmax(rows, 1), softmax(rows.on(kEmulated), 1)));
  }
}

TEST(OnDeviceGradients, summed_over_broadcast_dimensions_give_the_bits_of_the_cpu) {
  // The input, and what it is broadcast with.
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{5}, {700, 5}}, {{700, 1}, {700, 1500}}, {{1, 3}, {1100, 3}},       {{2, 1, 3}, {2, 40, 3}},
      {{1}, {3000}},   {{}, {2, 1300}},         {{4, 1, 1}, {4, 5, 1030}}, {{3, 1}, {2, 3, 1}}};
  for (const auto& [narrow_shape, shape] : shapes) {
    for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
      SCOPED_TRACE(::testing::PrintToString(narrow_shape) + " to " + ::testing::PrintToString(shape));
      const auto gradient = [&](const Device& device) {
        Tensor x = spread_tensor(narrow_shape, -1, 2, dtype).on(device).set_requires_grad(true);
        const Tensor y = spread_tensor(shape, -2, 3, dtype).on(device);
        sum(mul(mul(x, y), y)).backward();
        Tensor z = spread_tensor(narrow_shape, -1, 2, dtype).on(device).set_requires_grad(true);
        sum(mul(add(y, z), y)).backward();
        return std::pair(x.grad().on(Device{}), z.grad().on(Device{}));
      };
      const auto [expected_x, expected_z] = gradient(Device{});
      ScopedEmulatedDevice emulated;
      emulated.device.order = Order::kBackwards;
      const auto [x, z] = gradient(kEmulated);
      EXPECT_TRUE(same_values(expected_x, x));
      EXPECT_TRUE(same_values(expected_z, z));
    }
  }
}

TEST(OnDeviceAttention, with_masks_gives_the_bits_of_the_cpu) {
  const auto attend = [](const Device& device) {
    RandomStream random(7, 4);
    std::vector<double> later;
    for (int t = 0; t < 6; ++t) {
      for (int s = 0; s < 6; ++s) later.push_back(s > t ? 1 : 0);
    }
    Tensor q = spread_tensor({2, 6, 4}, -2, 2, DType::kF16).on(device).set_requires_grad(true);
    const Tensor k = spread_tensor({2, 6, 4}, -1, 2, DType::kF16).on(device);
    const Tensor v = spread_tensor({2, 6, 3}, -2, 1, DType::kF16).on(device);
    const AttentionOptions options{.mask = Tensor::from_values(later, {6, 6}, DType::kBool).on(device),
                                   .key_mask = {},
                                   .dropout = 0.25,
                                   .random = &random};
    const Tensor out = scaled_dot_product_attention(q, k, v, options);
    sum(out).backward();
    EXPECT_EQ(random.position(), 72U);
    return std::pair(out.detach().on(Device{}), q.grad().on(Device{}));
  };
  const auto [expected, expected_gradient] = attend(Device{});
  ScopedEmulatedDevice emulated;
  const auto [out, gradient] = attend(kEmulated);
  EXPECT_TRUE(same_values(expected, out));
  EXPECT_TRUE(same_values(expected_gradient, gradient));
}

}  // namespace
}  // namespace nanhunt::engine::testing
