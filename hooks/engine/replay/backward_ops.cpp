// SPDX-License-Identifier: Apache-2.0
// "<op>_backward" run again. A gradient depends on what forward saved, on shapes and on scalars, not on what else
// forward saw: so forward runs on stand-ins of the right shape, its node gets the captured saved values, and runs.
#include <stdexcept>
#include <string>

#include "hooks/engine/replay/engine_ops.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"

namespace nanhunt::hooks {
namespace {

using engine::Shape;
using engine::Tensor;

constexpr std::string_view kGrad = "grad_";

[[noreturn]] void refuse(std::string_view forward, const std::string& why) {
  throw std::invalid_argument("[" + std::string(forward) + "_backward] " + why);
}

// What forward read and no gradient needs: only its shape matters.
void add_stand_ins(std::string_view forward, const Tensor& grad, OpUse& use) {
  const auto add = [&](std::string_view slot, Shape sizes, DType dtype) {
    if (!use.find(slot).defined()) use.inputs.emplace_back(slot, Tensor::zeros(std::move(sizes), dtype));
  };
  const bool scalar_form = use.find_scalar("other").has_value();
  if ((forward == "add" || forward == "sub" || forward == "mul" || forward == "div") && !scalar_form)
    add("other", grad.sizes(), grad.dtype());
  if (forward == "where") add("other", grad.sizes(), grad.dtype());
  if (forward == "addcmul" || forward == "addcdiv") {
    for (const std::string_view slot : {"tensor1", "tensor2"}) add(slot, grad.sizes(), grad.dtype());
  }
  if (forward == "addmm") add("self", {grad.size(1)}, grad.dtype());
  if (forward == "addmv" || forward == "addr" || forward == "baddbmm") add("self", grad.sizes(), grad.dtype());
  if (forward == "native_batch_norm") {
    const Tensor weight = use.input("weight");
    for (const std::string_view slot : {"bias", "running_mean", "running_var"})
      add(slot, weight.sizes(), weight.dtype());
  }
  static constexpr std::string_view kLikeOutput[] = {"add", "sub", "mul", "div", "where", "addcmul", "addcdiv"};
  for (const std::string_view op : kLikeOutput) {
    if (op == forward) add("self", grad.sizes(), grad.dtype());
  }
}

Tensor run_forward(std::string_view forward, OpUse& use) {
  if (forward == "native_dropout") {
    engine::RandomStream random(0, 0);  // the mask it draws is replaced by the saved one
    return engine::dropout(use.input("input"), use.scalar("p"), random);
  }
  return forward_function(forward)(use).front().second;
}

}  // namespace

bool knows_backward(std::string_view forward) {
  if (forward == "native_dropout") return true;
  return !forward.ends_with('_') && forward != "eq" && forward != "gt" && forward != "amax" &&
         forward_function(forward) != nullptr;
}

std::vector<std::pair<std::string, Tensor>> run_backward(std::string_view forward, const OpUse& use,
                                                         const std::vector<hunt::RunnerOutput>& outputs) {
  const Tensor grad = use.input("grad_output");
  if (forward == "_to_copy") {
    if (outputs.size() != 1) refuse(forward, "expected one gradient, got " + std::to_string(outputs.size()));
    return {{std::string(outputs[0].slot), engine::to(grad, outputs[0].dtype)}};
  }
  OpUse stand_in{forward, {}, use.scalars, grad.sizes(), grad.dtype(), use.arithmetic};
  if (forward == "cat" && outputs.empty()) refuse(forward, "expected a gradient, got none");
  for (const hunt::RunnerOutput& output : outputs) {
    if (!output.slot.starts_with(kGrad)) refuse(forward, "expected outputs grad_..., got another name");
    const std::string_view slot = output.slot.substr(kGrad.size());
    Tensor tensor = use.find(slot);  // what was saved: its layout may decide how sums are taken
    if (!tensor.defined() || tensor.sizes() != output.sizes) tensor = Tensor::zeros(output.sizes, output.dtype);
    tensor = tensor.detach();
    tensor.set_requires_grad(true);
    stand_in.inputs.emplace_back(slot, tensor);
  }
  for (const auto& [slot, tensor] : use.inputs) {
    if (slot != "grad_output" && !stand_in.find(slot).defined()) stand_in.inputs.emplace_back(slot, tensor);
  }
  add_stand_ins(forward, grad, stand_in);
  const Tensor out = run_forward(forward, stand_in);
  if (out.sizes() != grad.sizes() || out.dtype() != grad.dtype() || out.impl()->grad_fn == nullptr ||
      out.impl()->grad_fn->op != forward)
    refuse(forward, "expected a gradient of the shape that forward gives, got another");
  engine::Node& node = *out.impl()->grad_fn;
  for (engine::SavedTensor& saved : node.saved) {
    if (!saved.tensor.defined()) continue;
    const Tensor captured = use.find(saved.slot);
    if (!captured.defined() || captured.sizes() != saved.tensor.sizes())
      refuse(forward, "expected the saved '" + std::string(saved.slot) + "', got none of its shape");
    saved.tensor = captured.detach();
    saved.version = captured.version();
  }
  const engine::NoGradGuard no_grad;
  const std::vector<Tensor> gradients = node.backward(grad, node);
  std::vector<std::pair<std::string, Tensor>> results;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    std::string slot = std::string(kGrad).append(node.edges[i].slot);
    // Where forward widened its input, its node knows the wide format only.
    Tensor gradient = gradients[i];
    for (const hunt::RunnerOutput& output : outputs) {
      if (output.slot == slot) gradient = engine::to(gradient, output.dtype);
    }
    results.emplace_back(std::move(slot), std::move(gradient));
  }
  return results;
}

}  // namespace nanhunt::hooks
