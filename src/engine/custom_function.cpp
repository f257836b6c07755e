// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/custom_function.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/core/scoped_value.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// Names outlive graphs, as the literals of the engine's own ops do.
std::string_view kept(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return *names.insert(name).first;
}

void check(const CustomFunction& function, std::size_t inputs) {
  constexpr std::string_view kOp = "custom function";
  if (function.name.empty()) fail(kOp, "a name for the function", "none");
  if (!function.forward || !function.backward) fail(kOp, "a forward and a backward", "one of them or none");
  if (!function.slots.empty() && function.slots.size() != inputs) {
    fail(kOp, fmt::format("{} inputs", function.slots.size()), std::to_string(inputs));
  }
}

std::string_view slot_of(const CustomFunction& function, std::size_t input) {
  return kept(function.slots.empty() ? fmt::format("input{}", input) : function.slots[input]);
}

// Only floating inputs have gradients.
ArgRole role_of(const Tensor& input) {
  if (is_floating(input.dtype())) return ArgRole::kRead;
  return input.dtype() == DType::kBool ? ArgRole::kMask : ArgRole::kIndex;
}

std::vector<Arg> as_arguments(const CustomFunction& function, const std::vector<Tensor>& inputs) {
  std::vector<Arg> arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) arguments.push_back({slot_of(function, i), &inputs[i], role_of(inputs[i])});
  }
  return arguments;
}

std::vector<Tensor> cast_to(DType dtype, std::vector<Tensor> inputs) {
  for (Tensor& input : inputs) {
    if (input.defined() && is_floating(input.dtype()) && input.dtype() != DType::kF64) input = to(input, dtype);
  }
  return inputs;
}

bool share_memory(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() && a.storage() == b.storage(); }

bool shares_memory(const Tensor& tensor, const std::vector<Tensor>& others) {
  return std::ranges::any_of(others, [&](const Tensor& other) { return share_memory(tensor, other); });
}

// Under which name a value goes into backward: that of the input that it is, or "result".
std::string_view saved_slot(const CustomFunction& function, const Tensor& value, const std::vector<Tensor>& inputs,
                            const Tensor& out, std::size_t number) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (share_memory(value, inputs[i])) return slot_of(function, i);
  }
  return share_memory(value, out) ? "result" : kept(fmt::format("saved{}", number));
}

bool is_enabled(const AutocastState& state) { return state.enabled.at(static_cast<std::size_t>(state.device)); }

// Under the autocast state that forward had, or under none.
class ScopedAutocastState {
 public:
  explicit ScopedAutocastState(const AutocastState& state) : off_(amp::detail::is_on, false) {
    if (!is_enabled(state)) return;
    region_.emplace(AutocastOptions{.enabled = true,
                                    .dtype = state.dtypes.at(static_cast<std::size_t>(state.device)),
                                    .cache = state.cache,
                                    .lists = state.lists,
                                    .device = state.device,
                                    .cache_drops_gradients = state.cache_drops_gradients});
  }

 private:
  ScopedValue<bool> off_;
  std::optional<Autocast> region_;
};

// The gradients of the edges from those of all inputs, in the dtype of each, none in memory that is used elsewhere.
std::vector<Tensor> checked(std::vector<Tensor> given, const std::vector<std::ptrdiff_t>& edge_of, const Node& node,
                            std::vector<Tensor> elsewhere) {
  if (given.size() != edge_of.size()) {
    throw std::invalid_argument(
        fmt::format("function {}Backward returned an incorrect number of gradients (expected {}, got {})", node.op,
                    edge_of.size(), given.size()));
  }
  std::vector<Tensor> gradients(node.edges.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].defined() || edge_of[i] < 0) continue;
    const auto at = static_cast<std::size_t>(edge_of[i]);
    const Edge& edge = node.edges[at];
    if (!edge.wanted()) continue;
    if (given[i].sizes() != edge.sizes) {
      throw std::invalid_argument(
          fmt::format("Function {}Backward returned an invalid gradient at index {} - got {} but expected shape "
                      "compatible with {}",
                      node.op, i, describe(given[i].sizes()), describe(edge.sizes)));
    }
    Tensor gradient = to(given[i], edge.dtype).detach();
    if (shares_memory(gradient, elsewhere)) gradient = gradient.clone();
    elsewhere.push_back(gradient);
    gradients[at] = std::move(gradient);
  }
  return gradients;
}

}  // namespace

Tensor CustomFunction::operator()(const std::vector<Tensor>& inputs) const {
  check(*this, inputs.size());
  const std::string_view op = kept(name);
  const auto context = std::make_shared<FunctionContext>();
  for (const Tensor& input : inputs) {
    context->needs_grad_.push_back(grad_enabled() && input.defined() && input.requires_grad());
  }
  context->autocast_ = autocast_state();
  const bool casts = cast_inputs.has_value();
  std::vector<Tensor> used = inputs;
  Tensor out;
  {
    const NoGradGuard no_grad;
    if (casts && autocast_enabled()) used = cast_to(*cast_inputs, used);
    if (casts) context->autocast_.enabled = {};
    const ScopedUnobserved unobserved;
    const ScopedValue autocast(amp::detail::is_on, autocast_enabled() && !casts);
    out = forward(*context, used);
    expect_defined(op, out, "the result of forward");
    out = shares_memory(out, inputs) || shares_memory(out, used) ? out.clone() : out.detach();
  }
  const std::vector<Arg> read = as_arguments(*this, used), arguments = as_arguments(*this, inputs);
  const DType compute = op_math(is_floating(out.dtype()) ? out.dtype() : DType::kF32);
  out = finish(op, compute, std::move(out), Args(read));
  if (!wants_grad(Args(arguments))) return out;
  expect_floating(op, out, "the result of forward");

  std::vector<std::ptrdiff_t> edge_of;
  std::ptrdiff_t edges = 0;
  for (const Tensor& input : inputs) {
    edge_of.push_back(input.defined() && role_of(input) == ArgRole::kRead ? edges++ : -1);
  }
  std::vector<Arg> saved;
  for (std::size_t i = 0; i < context->saved_.size(); ++i) {
    const Tensor& value = context->saved_[i];
    saved.push_back({value.defined() ? saved_slot(*this, value, used, out, i) : std::string_view(),
                     value.defined() ? &value : nullptr});
  }
  attach_node(
      op, compute, out, Args(arguments), {}, Args(saved),
      [context, edge_of, user_backward = backward, as_forward = backward_as_forward](
          const Tensor& g, const Node& node) -> std::vector<Tensor> {
        context->saved_.clear();
        for (const SavedTensor& value : node.saved) context->saved_.push_back(value.tensor);
        const ScopedUnobserved unobserved;
        std::optional<ScopedAutocastState> autocast;
        if (as_forward) autocast.emplace(context->autocast_);
        std::vector<Tensor> elsewhere = context->saved_;
        elsewhere.push_back(g);
        return checked(user_backward(*context, g), edge_of, node, std::move(elsewhere));
      });
  context->saved_.clear();  // the node has them
  out.impl()->grad_fn->custom = true;
  return out;
}

}  // namespace nanhunt::engine
