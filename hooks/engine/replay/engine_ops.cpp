// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/replay/engine_ops.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "src/core/op_name.h"

namespace nanhunt::hooks {
namespace {

using engine::Shape;
using engine::Tensor;

// Dimensions from outermost to innermost where the memory is dense in that order; empty: row-major, or with gaps.
std::vector<int> order_of(const Tensor& tensor) {
  if (tensor.is_contiguous()) return {};
  std::vector<int> order(tensor.sizes().size());
  std::iota(order.begin(), order.end(), 0);
  const Shape &sizes = tensor.sizes(), &strides = tensor.strides();
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return strides[static_cast<std::size_t>(a)] > strides[static_cast<std::size_t>(b)];
  });
  std::int64_t next = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    const auto at = static_cast<std::size_t>(*d);
    if (sizes[at] != 1 && strides[at] != next) return {};
    next *= sizes[at];
  }
  return order;
}

Tensor row_major(const hunt::Array& array) {
  Tensor tensor = Tensor::zeros(array.sizes, array.dtype);
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * dtype_size(array.dtype);
  if (bytes != array.bytes.size())
    throw std::invalid_argument("[array] expected as many bytes as the shape has, got others");
  if (bytes != 0) std::memcpy(tensor.raw(), array.bytes.data(), bytes);
  return tensor;
}

class EngineOpRunner final : public hunt::OpRunner {
 public:
  bool knows(std::string_view op) const override {
    const std::string_view forward = forward_op_name(op);
    return forward.empty() ? forward_function(op) != nullptr : knows_backward(forward);
  }

  Result<std::vector<std::optional<hunt::Array>>> run(const hunt::RunnerCall& call) override {
    const std::string name(call.op);
    if (!knows(call.op))
      return Status(StatusCode::kUnsupported, name + " cannot be computed again from its inputs alone.");
    std::vector<std::optional<hunt::Array>> results;
    std::string wrong;
    std::thread apart([&] {
      try {
        results = compute(call);
      } catch (const std::exception& e) {  // shapes or formats that this use does not fit
        wrong = e.what();
        if (wrong.empty()) wrong = "unknown";
      }
    });
    apart.join();
    if (!wrong.empty()) return Status(StatusCode::kUnsupported, name + " could not be computed again: " + wrong + ".");
    return results;
  }

 private:
  static std::vector<std::optional<hunt::Array>> compute(const hunt::RunnerCall& call) {
    OpUse use{call.op, {}, call.scalars, {}, DType::kF32, call.arithmetic};
    if (!call.outputs.empty()) {
      use.out_sizes = call.outputs[0].sizes;
      use.out_dtype = call.outputs[0].dtype;
    }
    for (const hunt::RunnerInput& input : call.inputs) use.inputs.emplace_back(input.slot, tensor_of(*input.array));
    std::vector<std::pair<std::string, Tensor>> results;
    if (const std::string_view forward = forward_op_name(call.op); !forward.empty()) {
      results = run_backward(forward, use, call.outputs);
    } else {
      const engine::NoGradGuard no_grad;
      for (auto& [slot, tensor] : forward_function(call.op)(use)) results.emplace_back(slot, tensor);
    }
    std::vector<std::optional<hunt::Array>> out(call.outputs.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const hunt::RunnerOutput& wanted = call.outputs[i];
      for (const auto& [slot, tensor] : results) {
        if (slot != wanted.slot) continue;
        if (tensor.sizes() != wanted.sizes || tensor.dtype() != wanted.dtype)
          throw std::invalid_argument("its result has another shape or format than in the run");
        out[i] = array_of(tensor);
      }
    }
    return out;
  }
};

}  // namespace

hunt::Array array_of(const Tensor& tensor) {
  hunt::Array array{tensor.dtype(), tensor.sizes(), order_of(tensor), {}};
  const Tensor here = tensor.on(engine::Device{});
  const Tensor dense = here.is_contiguous() ? here : here.clone();
  array.bytes.resize(static_cast<std::size_t>(dense.numel()) * dtype_size(array.dtype));
  if (!array.bytes.empty()) std::memcpy(array.bytes.data(), dense.raw(), array.bytes.size());
  return array;
}

Tensor tensor_of(const hunt::Array& array) {
  Tensor plain = row_major(array);
  if (array.order.empty()) return plain;
  Shape sizes;
  std::vector<int> inverse(array.order.size());
  for (std::size_t i = 0; i < array.order.size(); ++i) {
    sizes.push_back(array.sizes.at(static_cast<std::size_t>(array.order[i])));
    inverse.at(static_cast<std::size_t>(array.order[i])) = static_cast<int>(i);
  }
  const engine::NoGradGuard no_grad;
  Tensor shaped = engine::permute(Tensor::zeros(sizes, array.dtype), inverse).detach();
  shaped.copy_from(plain);
  return shaped;
}

std::unique_ptr<hunt::OpRunner> make_engine_op_runner() { return std::make_unique<EngineOpRunner>(); }

}  // namespace nanhunt::hooks
