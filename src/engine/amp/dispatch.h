// SPDX-License-Identifier: Apache-2.0
// How an op on an autocast list intercepts itself. Its row in src/core/ops/autocast says what happens, if the list of
// the region has one; the op says it once, first:
//
//   Tensor matmul(const Tensor& self, const Tensor& other) {
//     if (amp::intercepts("matmul")) return amp::run("matmul", matmul, self, other);
//
//   Tensor pow(const Tensor& self, double exponent) {
//     if (amp::intercepts("pow")) return amp::run("pow", [=](const Tensor& x) { return pow(x, exponent); }, self);
//
// and an op whose result alone is wider on some list (fp32-output, append-dtype), after its checks:
//
//   Tensor out = Tensor::zeros(sizes, amp::output_dtype("softmax", self));
//
// Its backward then gets an fp32 gradient and must return one in the dtype of the input. In-place ops never intercept.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "nanhunt/engine/tensor.h"
#include "src/core/scoped_value.h"

namespace nanhunt::engine::amp {
namespace detail {

extern constinit thread_local bool is_on;

bool casts_arguments(std::string_view op);
// What the op's arguments are cast to; none: not at all. Throws for a banned op.
std::optional<DType> argument_dtype(std::string_view op, std::span<const Tensor* const> inputs);
Tensor cast_argument(const Tensor& input, std::optional<DType> dtype);

}  // namespace detail

// One thread-local read: all that an op costs outside a region.
inline bool intercepts(std::string_view op) { return detail::is_on && detail::casts_arguments(op); }

// f(inputs...) with its arguments cast as the row of `op` says (low, fp32 or promote), or refused (banned). Undefined,
// integer and fp64 arguments stay as they are.
template <typename F, typename... Tensors>
Tensor run(std::string_view op, F&& f, const Tensors&... inputs) {
  const std::array<const Tensor*, sizeof...(Tensors)> list{&inputs...};
  const std::optional<DType> dtype = detail::argument_dtype(op, list);
  const std::array<Tensor, sizeof...(Tensors)> cast{detail::cast_argument(inputs, dtype)...};
  const ScopedValue off(detail::is_on, false);  // for what the op calls: a composite is cast once
  return std::apply(std::forward<F>(f), cast);
}

// The same for an op of a list of tensors.
template <typename F>
Tensor run_list(std::string_view op, F&& f, const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> list;
  for (const Tensor& input : inputs) list.push_back(&input);
  const std::optional<DType> dtype = detail::argument_dtype(op, list);
  std::vector<Tensor> cast;
  for (const Tensor& input : inputs) cast.push_back(detail::cast_argument(input, dtype));
  const ScopedValue off(detail::is_on, false);
  return std::forward<F>(f)(cast);
}

// Result dtype of an op with this first argument: fp32 where the list of the region widens it, else the argument's own.
DType output_dtype(std::string_view op, const Tensor& self);

}  // namespace nanhunt::engine::amp
