// SPDX-License-Identifier: Apache-2.0
// Anomaly mode: names as torch gives them, NaN alone stops, and observers hear of the op first.
#include "nanhunt/engine/anomaly.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

// test_backward_names_against_torch.py holds it to torch.
std::map<std::string, std::string> names_in_torch() {
  std::ifstream file(NANHUNT_SOURCE_DIR "/tests/engine/ops/torch_backward_names.txt");
  std::map<std::string, std::string> names;
  for (std::string op, name; file >> op >> name;) names[op] = name;
  return names;
}

TEST(Anomaly, names_the_backward_of_every_op_as_torch_does) {
  const std::map<std::string, std::string> known = names_in_torch();
  ASSERT_GT(known.size(), 40U);
  for (const OpCase& c : op_cases()) {
    if (!c.differentiable) continue;
    const Node* node = c.call(c.inputs).impl()->grad_fn.get();
    if (node == nullptr) continue;  // it gave its input back
    std::string op(node->op);
    for (const OpScalar& scalar : node->scalars) {
      if (scalar.name == "dim" && known.contains(op + ".dim")) op += ".dim";
    }
    ASSERT_TRUE(known.contains(op)) << op << ": its name in torch is not in torch_backward_names.txt";
    EXPECT_EQ(backward_function_name(node->op, node->scalars), known.at(op)) << c.label;
  }
}

// The slope of a root at 0 is infinite; times 0 it is NaN.
Tensor zeros() {
  Tensor x = Tensor::zeros({2}, DType::kF32);
  x.set_requires_grad(true);
  return x;
}

std::string words_of(const Tensor& loss) {
  try {
    backward(loss);
  } catch (const AnomalyError& stopped) {
    return stopped.what();
  }
  return "passes";
}

TEST(Anomaly, stops_at_nan_with_torchs_words_and_lets_infinities_pass) {
  const DetectAnomaly anomaly;
  EXPECT_EQ(words_of(sum(mul(sqrt(zeros()), 0))), "Function 'SqrtBackward0' returned nan values in its 0th output.");
  const Tensor x = zeros();
  EXPECT_EQ(words_of(sum(sqrt(x))), "passes");
  EXPECT_EQ(x.grad().at(0), INFINITY);
}

TEST(Anomaly, counts_outputs_as_the_inputs_of_the_op) {
  const DetectAnomaly anomaly;
  Tensor weight = Tensor::full({2}, 1, DType::kF32);
  weight.set_requires_grad(true);
  const Tensor infinite = Tensor::full({2}, INFINITY, DType::kF32);
  // grad_other = 0 * Inf; self wants no gradient.
  EXPECT_EQ(words_of(sum(mul(mul(infinite, weight), 0))), "Function 'MulBackward0' returned nan values in its 1th output.");
}

TEST(Anomaly, is_off_unless_asked_for_and_nests) {
  EXPECT_FALSE(detects_anomaly());
  EXPECT_EQ(words_of(sum(mul(sqrt(zeros()), 0))), "passes");
  {
    const DetectAnomaly on;
    const DetectAnomaly off(false);
    EXPECT_EQ(words_of(sum(mul(sqrt(zeros()), 0))), "passes");
  }
  EXPECT_FALSE(detects_anomaly());
}

TEST(Anomaly, tells_observers_of_the_op_before_it_stops_and_stores_no_gradient) {
  const DetectAnomaly anomaly;
  const Tensor x = zeros();
  const Tensor loss = sum(mul(sqrt(x), 0));
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_NE(words_of(loss), "passes");
  EXPECT_EQ(log.lines.back(), "op backward  sqrt_backward");
  EXPECT_FALSE(x.grad().defined());
}

}  // namespace
}  // namespace nanhunt::engine::testing
