// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>


namespace nanhunt::engine {
namespace {

// Process-wide, so that the order of nodes is right even when a graph crosses threads.
std::atomic<std::uint64_t> next_order{1};

bool is_engine_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

int category(DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::kBool ? 0 : 1; }

}  // namespace

void fail(std::string_view op, std::string_view expected, std::string_view got) {
  throw std::invalid_argument(fmt::format("[{}] expected {}, got {}", op, expected, got));
}

std::string describe(const Shape& sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("{} {}", dtype_name(tensor.dtype()), describe(tensor.sizes()));
}

std::int64_t numel_of(const Shape& sizes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::int64_t n = 1;
  bool empty = false;
  for (std::int64_t size : sizes) {
    if (size < 0) fail("tensor", "sizes of 0 or more", describe(sizes));
    if (size == 0) {
      empty = true;
    } else if (n > kMax / size) {
      fail("tensor", "fewer than 2^63 elements", describe(sizes));
    } else {
      n *= size;
    }
  }
  return empty ? 0 : n;
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = next;
    next *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

Tensor make_view(const Tensor& base, Shape sizes, Shape strides, std::int64_t offset) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = base.storage();
  impl->dtype = base.dtype();
  impl->sizes = std::move(sizes);
  impl->strides = std::move(strides);
  impl->offset = offset;
  return Tensor(std::move(impl));
}

Tensor dim_last(const Tensor& tensor, int dim) {
  Shape sizes = tensor.sizes(), strides = tensor.strides();
  std::rotate(sizes.begin() + dim, sizes.begin() + dim + 1, sizes.end());
  std::rotate(strides.begin() + dim, strides.begin() + dim + 1, strides.end());
  return make_view(tensor, std::move(sizes), std::move(strides), tensor.storage_offset());
}

DType op_math(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

DType norm_arithmetic(DType input, NormStatistics statistics) {
  return statistics == NormStatistics::kInput ? input : op_math(input);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (category(a) == 1) return DType::kI64;
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  return DType::kF32;  // fp16 with bf16 too: neither holds the other
}

DType promote(const Tensor& a, const Tensor& b) {
  // A 0-dim tensor counts only when its category is higher.
  const int ca = category(a.dtype()), cb = category(b.dtype());
  if (ca == cb && (a.dim() == 0) != (b.dim() == 0)) return a.dim() == 0 ? b.dtype() : a.dtype();
  return promote(a.dtype(), b.dtype());
}

Shape broadcast(std::string_view op, const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t d = 0; d < out.size(); ++d) {
    const std::int64_t x = d + a.size() < out.size() ? 1 : a[d + a.size() - out.size()];
    const std::int64_t y = d + b.size() < out.size() ? 1 : b[d + b.size() - out.size()];
    if (x != y && x != 1 && y != 1) fail(op, "shapes that broadcast", describe(a) + " and " + describe(b));
    out[d] = x == 1 ? y : x;
  }
  numel_of(out);
  return out;
}

void expect_defined(std::string_view op, const Tensor& tensor, std::string_view slot) {
  if (!tensor.defined()) fail(op, fmt::format("a tensor for {}", slot), describe(tensor));
}

void expect_floating(std::string_view op, const Tensor& tensor, std::string_view slot) {
  expect_defined(op, tensor, slot);
  if (!is_engine_float(tensor.dtype())) fail(op, fmt::format("{} of fp16, bf16, fp32 or fp64", slot), describe(tensor));
}

void expect_dtype(std::string_view op, const Tensor& tensor, std::string_view slot, DType dtype) {
  expect_defined(op, tensor, slot);
  if (tensor.dtype() != dtype) fail(op, fmt::format("{} of {}", slot, dtype_name(dtype)), describe(tensor));
}

void expect_dim(std::string_view op, const Tensor& tensor, std::string_view slot, int dims) {
  if (tensor.dim() != dims) fail(op, fmt::format("{} with {} dimension(s)", slot, dims), describe(tensor));
}

int wrap_dim(std::string_view op, const Tensor& tensor, int dim) {
  const int dims = tensor.dim();
  if (dim < -dims || dim >= dims) {
    fail(op, fmt::format("a dimension of {}", describe(tensor.sizes())), fmt::format("{}", dim));
  }
  return dim < 0 ? dim + dims : dim;
}

Tensor finish(std::string_view op, DType compute, Tensor out, Args inputs, Scalars scalars, Args also) {
  if (!ops_observed()) return out;
  std::vector<OpArgument> arguments;
  arguments.reserve(inputs.size());
  for (const Arg& input : inputs) {
    const std::uint32_t bumped = input.role == ArgRole::kOverwritten ? 1 : 0;
    arguments.push_back({input.slot, input.tensor, input.tensor->version() - bumped, input.role});
  }
  std::vector<OpArgument> outputs{{"out", &out, out.version(), ArgRole::kRead}};
  for (const Arg& output : also) {
    outputs.push_back({output.slot, output.tensor, output.tensor->version(), ArgRole::kRead});
  }
  notify_op({.op = op,
             .phase = current_phase(),
             .module = current_module(),
             .compute_dtype = compute,
             .inputs = arguments,
             .outputs = outputs,
             .scalars = std::span(scalars.begin(), scalars.size())});
  return out;
}

Tensor& finish_in_place(std::string_view op, DType compute, Tensor& self, Args others, Scalars scalars) {
  const std::uint32_t before = self.version();
  self.storage()->bump_version();
  if (!ops_observed()) return self;
  std::vector<OpArgument> inputs{{"self", &self, before, ArgRole::kOverwritten}};
  for (const Arg& other : others) {
    const bool shares = other.tensor->storage() == self.storage();
    inputs.push_back({other.slot, other.tensor, shares ? before : other.tensor->version(), other.role});
  }
  const OpArgument output{"out", &self, self.version(), ArgRole::kRead};
  notify_op({.op = op,
             .phase = current_phase(),
             .module = current_module(),
             .compute_dtype = compute,
             .inputs = inputs,
             .outputs = std::span(&output, 1),
             .scalars = std::span(scalars.begin(), scalars.size())});
  return self;
}

bool wants_grad(Args inputs) {
  if (!grad_enabled()) return false;
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Arg& input) { return input.role == ArgRole::kRead && input.tensor->requires_grad(); });
}

void attach_node(std::string_view op, DType compute, const Tensor& out, Args inputs, Scalars scalars, Args saved,
                 decltype(Node::backward) backward) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->module = current_module();
  node->order = next_order.fetch_add(1, std::memory_order_relaxed);
  for (const Arg& input : inputs) {
    if (input.role != ArgRole::kRead) continue;
    Edge edge{
        .slot = input.slot, .sizes = input.tensor->sizes(), .dtype = input.tensor->dtype(), .node = {}, .leaf = {}};
    if (input.tensor->requires_grad()) {
      edge.node = input.tensor->impl()->grad_fn;
      if (edge.node == nullptr) edge.leaf = *input.tensor;
    }
    node->edges.push_back(std::move(edge));
  }
  for (const Arg& value : saved) {
    if (value.tensor == nullptr) {
      node->saved.emplace_back();
      continue;
    }
    node->saved.push_back(save(value.slot, *value.tensor, value.role == ArgRole::kRead ? ArgRole::kSaved : value.role));
  }
  node->scalars.assign(scalars.begin(), scalars.end());
  node->dtype = out.dtype();
  node->compute_dtype = compute;
  node->backward = std::move(backward);
  out.impl()->grad_fn = std::move(node);
  out.impl()->requires_grad = true;
}

}  // namespace nanhunt::engine
