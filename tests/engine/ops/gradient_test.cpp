// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <set>

#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

class Gradient : public ::testing::TestWithParam<OpCase> {};

TEST_P(Gradient, matches_central_differences) {
  const OpCase& c = GetParam();
  if (!c.differentiable) {
    EXPECT_FALSE(c.call(c.inputs).requires_grad());
    return;
  }
  expect_gradients_match(c.call, c.inputs);
}

INSTANTIATE_TEST_SUITE_P(every_op, Gradient, ::testing::ValuesIn(op_cases()),
                         [](const auto& given) { return given.param.label; });

TEST(OpCases, cover_every_op_of_the_header) {
  // given: the functions that ops.h declares
  std::ifstream file(NANHUNT_SOURCE_DIR "/include/nanhunt/engine/ops.h");
  ASSERT_TRUE(file);
  std::set<std::string> declared, covered;
  for (std::string line; std::getline(file, line);) {
    for (const std::string start : {"Tensor ", "Tensor& "}) {
      if (line.rfind(start, 0) == 0) declared.insert(line.substr(start.size(), line.find('(') - start.size()));
    }
  }
  ASSERT_GT(declared.size(), 40U);
  // when: the ops that have a case here
  for (const OpCase& c : op_cases()) covered.insert(c.op);
  for (const OpCase& c : inplace_cases()) covered.insert(c.op);
  // then: an op without a case, and so without a gradient check, fails this test
  EXPECT_EQ(declared, covered);
}

TEST(Gradient, of_a_chain_with_fan_out_matches_central_differences) {
  Tensor x = spread_tensor({3, 4}, 0.5, 2).set_requires_grad(true);
  Tensor w = spread_tensor({4, 4}, -1, 1).set_requires_grad(true);
  expect_gradients_match(
      [](const std::vector<Tensor>& in) {
        const Tensor h = tanh(matmul(in[0], in[1]));
        const Tensor k = mul(h, softmax(add(h, in[0]), 1));
        return div(add(k, h), add(norm(matmul(k, in[1])), 1.0));
      },
      {x, w});
}

}  // namespace
}  // namespace nanhunt::engine::testing
