// SPDX-License-Identifier: Apache-2.0
// Ops of one's own, with a forward and a backward: what torch.autograd.Function is, and what torch.amp's custom_fwd and
// custom_bwd make of it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

// What one call's forward hands to its backward.
class FunctionContext {
 public:
  // In forward: inputs, the result, or others. One that is written in place before backward makes backward throw.
  void save_for_backward(std::vector<Tensor> tensors) { saved_ = std::move(tensors); }
  // In backward: those, without their history.
  const std::vector<Tensor>& saved_tensors() const { return saved_; }
  bool needs_input_grad(std::size_t input) const { return needs_grad_.at(input); }
  std::map<std::string, double, std::less<>> saved_data;  // numbers

 private:
  friend struct CustomFunction;
  std::vector<Tensor> saved_;
  std::vector<bool> needs_grad_;
  AutocastState autocast_;  // of forward
};

struct CustomFunction {
  // Observers are told one op of this name, and "<name>_backward"; what the two call is not told.
  std::string name;
  // Inputs to one result, without gradients, in any ops of the engine or loops over elements. A result that shares
  // memory with an input is copied.
  std::function<Tensor(FunctionContext& context, const std::vector<Tensor>& inputs)> forward;
  // The result's gradient to one gradient for each input (undefined: none) in the shape of the input; its dtype is
  // converted.
  std::function<std::vector<Tensor>(FunctionContext& context, const Tensor& grad_output)> backward;
  std::vector<std::string> slots = {};  // names of the inputs; none given: "input0", "input1", ...
  // custom_fwd(cast_inputs=): under autocast, inputs of fp16, bf16 and fp32 are cast to it (each cast is observed as a
  // "_to_copy"), and forward and backward run with autocast off. None: forward runs under autocast as it is.
  std::optional<DType> cast_inputs = {};
  // custom_bwd: backward runs under the autocast state of forward; else under that in which backward() is called.
  bool backward_as_forward = true;

  // One call. Undefined inputs are handed on. Throws std::invalid_argument for a function without a name, forward or
  // backward, for a result that is not floating where a gradient is wanted, and in backward, in torch's words, for
  // gradients that are too many, too few or of another shape.
  Tensor operator()(const std::vector<Tensor>& inputs) const;
};

}  // namespace nanhunt::engine
