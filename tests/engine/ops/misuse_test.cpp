// SPDX-License-Identifier: Apache-2.0
// A caller's mistake throws "[op] expected ..., got ...", and changes nothing.
#include <gmock/gmock.h>

#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename F>
void expect_throws(F f, const std::string& text) {
  EXPECT_THAT(f, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
}

const Tensor& matrix() {
  static const Tensor kMatrix = Tensor::zeros({2, 3}, DType::kF32);
  return kMatrix;
}

TEST(Misuse, an_undefined_operand_is_named_by_every_op) {
  for (auto cases : {op_cases, inplace_cases}) {
    for (const OpCase& c : cases()) {
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        std::vector<Tensor> inputs = c.inputs;
        inputs[i] = Tensor();
        if ((c.op == "linear" || c.op == "conv2d") && i == 2) continue;  // no bias
        if ((c.op == "layer_norm" || c.op == "rms_norm") && i > 0) continue;  // no weight, no bias
        if (c.op == "scaled_dot_product_attention" && i == 3) continue;  // no mask
        expect_throws([&] { c.call(inputs); }, "got an undefined tensor");
      }
    }
  }
}

TEST(Misuse, shapes_that_do_not_fit) {
  const Tensor other = Tensor::zeros({4}, DType::kF32);
  expect_throws([&] { add(matrix(), other); }, "[add] expected shapes that broadcast, got [2, 3] and [4]");
  expect_throws([&] { where(gt(other, 0.0), matrix(), matrix()); }, "[where] expected shapes that broadcast");
  expect_throws([&] { matmul(matrix(), matrix()); },
                "[mm] expected as many columns on the left as rows on the right, got fp32 [2, 3] and fp32 [2, 3]");
  expect_throws([&] { matmul(matrix(), other); }, "[mv] expected vec of [3], got fp32 [4]");
  expect_throws([&] { dot(other, select(matrix(), 0, 0)); }, "[dot] expected tensor of [4], got fp32 [3]");
  expect_throws([&] { matmul(other, other.detach()), matmul(Tensor::zeros({}, DType::kF32), other); },
                "[matmul] expected self with 2 dimensions or more, got fp32 []");
  expect_throws([&] { prelu(matrix(), other); }, "[prelu] expected a weight of one element or 3, got fp32 [4]");
  expect_throws([&] { addmm(other, matrix(), t(matrix())); }, "[addmm] expected shapes that broadcast");
  expect_throws(
      [&] {
        addmm(Tensor::zeros({2, 2, 2}, DType::kF32), matrix(), t(matrix()));
      },
      "[addmm] expected self that broadcasts to [2, 2]");
  expect_throws([&] { t(other); }, "[t] expected self with 2 dimension(s), got fp32 [4]");
  expect_throws([&] { reshape(matrix(), {4}); }, "[view] expected a shape of 6 elements, got [4]");
  expect_throws([&] { reshape(matrix(), {4, -1}); }, "[view] expected a shape of 6 elements, got [4, -1]");
  expect_throws([&] { reshape(matrix(), {-1, -1}); }, "expected sizes of 0 or more");
  expect_throws([&] { reshape(matrix(), {0, -1}); }, "[view] expected a shape of 6 elements, got [0, -1]");
  Tensor target = matrix().clone();
  expect_throws([&] { add_(target, other); }, "[add_] expected shapes that broadcast");
  expect_throws(
      [&] {
        copy_(target, Tensor::zeros({4, 2, 3}, DType::kF32));
      },
      "[copy_] expected src that broadcasts to [2, 3], got fp32 [4, 2, 3]");
  EXPECT_EQ(target.version(), 0U);
}

TEST(Misuse, dimensions_and_ranges_outside_the_tensor) {
  expect_throws([] { sum(matrix(), 2); }, "[sum] expected a dimension of [2, 3], got 2");
  expect_throws([] { softmax(matrix(), -3); }, "[softmax] expected a dimension of [2, 3], got -3");
  expect_throws([] { amax(Tensor::zeros({2, 0}, DType::kF32), 1); }, "[amax] expected a dimension with elements");
  expect_throws([] { narrow(matrix(), 1, 2, 2); }, "[narrow] expected a range within 3, got start 2, length 2");
  expect_throws([] { narrow(matrix(), 1, -1, 2); }, "[narrow] expected a range within 3");
  expect_throws([] { narrow(matrix(), 1, 1, std::numeric_limits<std::int64_t>::max()); }, "[narrow] expected a range");
  expect_throws([] { select(matrix(), 0, 2); }, "[select] expected an index within 2, got 2");
  expect_throws([] { select(matrix(), 0, -3); }, "[select] expected an index within 2, got -3");
}

TEST(Misuse, probabilities_that_are_none_and_losses_without_a_width) {
  const auto of = [](double p) { return Tensor::full({2}, p, DType::kF32); };
  for (const double bad : {-0.1, 1.1, std::nan("")}) {
    expect_throws([&] { binary_cross_entropy(of(bad), of(1)); },
                  "[binary_cross_entropy] all elements of input should be between 0 and 1");
  }
  expect_throws([&] { binary_cross_entropy(of(1), of(2)); },
                "[binary_cross_entropy] all elements of target should be between 0 and 1");
  EXPECT_EQ(binary_cross_entropy(of(1), of(0)).item(), 100) << "a logarithm below -100 counts as -100";
  expect_throws([&] { huber_loss(of(1), of(1), 0); }, "[huber_loss] expected a delta above 0");
}

TEST(Misuse, formats_that_an_op_does_not_take) {
  const Tensor labels = Tensor::from_indices(std::vector<std::int64_t>{0, 1}, {2});
  expect_throws([&] { exp(labels); }, "[exp] expected self of fp16, bf16, fp32 or fp64, got int64 [2]");
  expect_throws([&] { add(labels, labels); }, "[add] expected an operand of fp16, bf16, fp32 or fp64");
  expect_throws([&] { sum(labels); }, "[sum] expected self of fp16");
  expect_throws([] { where(matrix(), matrix(), matrix()); }, "[where] expected condition of bool, got fp32 [2, 3]");
  expect_throws([] { masked_fill(matrix(), matrix(), 0); }, "[masked_fill] expected mask of bool, got fp32 [2, 3]");
  expect_throws([] { matmul(matrix(), t(to(matrix(), DType::kF16))); }, "[mm] expected operands of one dtype");
  expect_throws([] { addmm(Tensor::zeros({2}, DType::kF16), matrix(), t(matrix())); },
                "[addmm] expected self of fp32, got fp16 [2]");
  expect_throws([] { embedding(matrix(), matrix()); }, "[embedding] expected indices of int64, got fp32 [2, 3]");
  expect_throws([] { add(Tensor::zeros({1}, DType::kE4M3FN), 1.0); }, "[add] expected self of fp16");
}

TEST(Misuse, classes_and_indices_out_of_range_are_named_with_their_position) {
  const auto indices = [](std::vector<std::int64_t> list) {
    const auto n = static_cast<std::int64_t>(list.size());
    return Tensor::from_indices(list, {n});
  };
  expect_throws(
      [&] {
        nll_loss(matrix(), indices({0, 3}));
      },
      "[nll_loss] expected target from 0 to 2, got 3 at position 1");
  expect_throws([&] { nll_loss(matrix(), indices({-1, 0})); }, "got -1 at position 0");
  expect_throws([&] { nll_loss(matrix(), indices({0})); }, "[nll_loss] expected target of [2], got int64 [1]");
  expect_throws(
      [&] {
        embedding(matrix(), indices({1, 2}));
      },
      "[embedding] expected indices from 0 to 1, got 2 at position 1");
}

TEST(Misuse, an_in_place_write_to_a_tracked_tensor_needs_a_guard) {
  Tensor x = matrix().clone().set_requires_grad(true);
  Tensor plain = matrix().clone();
  expect_throws([&] { add_(x, 1.0); }, "[add_] expected tensors without gradient");
  expect_throws([&] { add_(plain, x); }, "use NoGradGuard, or detach() the operands");
  const NoGradGuard no_grad;
  add_(x, 1.0);
  EXPECT_EQ(x.at(0), 1);
}

}  // namespace
}  // namespace nanhunt::engine::testing
