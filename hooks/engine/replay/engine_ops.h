// SPDX-License-Identifier: Apache-2.0
// Ops of the engine run again by name, from arrays: what counterfactuals need (hunt::OpRunner).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/engine/tensor.h"
#include "src/hunt/op_runner.h"

namespace nanhunt::hooks {

// Each call runs in a thread of its own: nobody observes it, and autocast is off there.
std::unique_ptr<hunt::OpRunner> make_engine_op_runner();

hunt::Array array_of(const engine::Tensor& tensor);
engine::Tensor tensor_of(const hunt::Array& array);  // with the array's layout

// An op with its arguments as tensors. What an op needs and does not find is thrown as std::invalid_argument.
struct OpUse {
  std::string_view op;
  std::vector<std::pair<std::string_view, engine::Tensor>> inputs;
  std::vector<std::pair<std::string_view, double>> scalars;
  engine::Shape out_sizes;  // of its first output
  DType out_dtype = DType::kF32;
  DType arithmetic = DType::kF32;  // hunt::RunnerCall

  engine::Tensor find(std::string_view slot) const;  // undefined: none
  engine::Tensor input(std::string_view slot) const;
  std::optional<double> find_scalar(std::string_view name) const;
  double scalar(std::string_view name) const;
};
using NamedResults = std::vector<std::pair<std::string_view, engine::Tensor>>;
using ForwardFunction = NamedResults (*)(OpUse&);

// nullptr: not an op that can be run from its arguments alone. In-place ops write to their "self".
ForwardFunction forward_function(std::string_view op);
// "<op>_backward": hangs the op's node on stand-ins for what forward had, gives it the saved values and runs it.
// Slots of the result are "grad_<slot>".
std::vector<std::pair<std::string, engine::Tensor>> run_backward(std::string_view forward, const OpUse& use,
                                                                 const std::vector<hunt::RunnerOutput>& outputs);
bool knows_backward(std::string_view forward);

}  // namespace nanhunt::hooks
