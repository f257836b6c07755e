// SPDX-License-Identifier: Apache-2.0
// Prints what ops give, one JSON object a line: for every case of the ops named as arguments, in each format, its
// inputs, its result, and the gradients of the result's sum weighted by 0.5, 0.6, 0.7, 0.8, 0.5, ...
// test_op_values_against_torch.py gives torch the same inputs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <iostream>
#include <set>
#include <string>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

std::string shown(const Tensor& tensor) {
  if (!tensor.defined()) return "null";
  std::vector<std::string> values;
  for (const double value : tensor.to_vector()) {
    values.push_back(std::isfinite(value) ? fmt::format("{}", value) : fmt::format("\"{}\"", value));
  }
  return fmt::format(R"({{"sizes":[{}],"values":[{}],"wanted":{}}})", fmt::join(tensor.sizes(), ","),
                     fmt::join(values, ","), tensor.requires_grad());
}

std::string shown(const std::vector<Tensor>& tensors) {
  std::vector<std::string> all;
  for (const Tensor& tensor : tensors) all.push_back(shown(tensor));
  return fmt::format("[{}]", fmt::join(all, ","));
}

Tensor as(const Tensor& source, DType dtype) {
  if (!is_floating(source.dtype())) return source;
  Tensor out = Tensor::zeros(source.sizes(), dtype);
  out.copy_from(source);
  return out.set_requires_grad(source.requires_grad());
}

Tensor weights_of(const Tensor& result) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < result.numel(); ++i) values.push_back(0.5 + 0.1 * static_cast<double>(i % 4));
  return Tensor::from_values(values, result.sizes(), result.dtype());
}

void print(const OpCase& c, DType dtype) {
  std::vector<Tensor> inputs, gradients;
  for (const Tensor& input : c.inputs) inputs.push_back(as(input, dtype));
  const Tensor out = c.call(inputs);
  if (c.differentiable) sum(mul(out, weights_of(out))).backward();
  for (const Tensor& input : inputs) gradients.push_back(input.grad());
  std::cout << fmt::format(R"({{"op":"{}","label":"{}","dtype":"{}","inputs":{},"out":{},"gradients":{}}})", c.op,
                           c.label, dtype_name(dtype), shown(inputs), shown(out.detach()), shown(gradients))
            << "\n";
}

}  // namespace
}  // namespace nanhunt::engine::testing

int main(int argc, char** argv) {
  using namespace nanhunt;
  const std::set<std::string> ops(argv + 1, argv + argc);
  for (const engine::testing::OpCase& c : engine::testing::op_cases()) {
    if (ops.count(c.op) == 0) continue;
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) engine::testing::print(c, dtype);
  }
}
