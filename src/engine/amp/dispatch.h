// SPDX-License-Identifier: Apache-2.0
// How an op on an autocast list intercepts itself. Its row in policy.cpp says what happens; the op says it once, first:
//
//   Tensor matmul(const Tensor& self, const Tensor& other) {
//     if (amp::intercepts()) return amp::run("matmul", matmul, self, other);
//
//   Tensor pow(const Tensor& self, double exponent) {
//     if (amp::intercepts()) return amp::run("pow", [=](const Tensor& x) { return pow(x, exponent); }, self);
//
// and an op whose result alone is wider (fp32-output, append-dtype), after its checks:
//
//   Tensor out = Tensor::zeros(sizes, amp::output_dtype("softmax", self));
//
// Its backward then gets an fp32 gradient and must return one in the dtype of the input. In-place ops never intercept.
// An op whose arguments are cast by some lists and not by others says amp::intercepts("softmax") instead.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <utility>

#include "nanhunt/engine/tensor.h"
#include "src/core/scoped_value.h"

namespace nanhunt::engine::amp {
namespace detail {

extern constinit thread_local bool is_on;

bool casts_arguments(std::string_view op);
DType argument_dtype(std::string_view op, std::initializer_list<const Tensor*> inputs);
Tensor cast_argument(const Tensor& input, DType dtype);

}  // namespace detail

// One thread-local read: all that an op costs outside a region.
inline bool intercepts() { return detail::is_on; }
inline bool intercepts(std::string_view op) { return detail::is_on && detail::casts_arguments(op); }

// f(inputs...) with its arguments cast as the row of `op` says (low, fp32 or promote). Undefined, integer and fp64
// arguments stay as they are.
template <typename F, typename... Tensors>
Tensor run(std::string_view op, F&& f, const Tensors&... inputs) {
  const DType dtype = detail::argument_dtype(op, {&inputs...});
  const std::array<Tensor, sizeof...(Tensors)> cast{detail::cast_argument(inputs, dtype)...};
  const ScopedValue off(detail::is_on, false);  // for what the op calls: a composite is cast once
  return std::apply(std::forward<F>(f), cast);
}

// Result dtype of an fp32-output or append-dtype op with this first argument; the argument's own outside a region.
DType output_dtype(std::string_view op, const Tensor& self);

}  // namespace nanhunt::engine::amp
