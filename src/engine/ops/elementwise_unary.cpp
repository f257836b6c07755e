// SPDX-License-Identifier: Apache-2.0
// neg, abs, reciprocal, exp, log, sqrt, rsqrt, relu, tanh, sigmoid, clamp.
#include <cmath>
#include <limits>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/elementwise.h"

namespace nanhunt::engine {
namespace {

enum class Saves { kSelf, kResult };

// out = f(self); grad = df(grad_output, saved). `role` tells how df uses the saved value.
template <typename F, typename Gradient>
Tensor unary(std::string_view op, const Tensor& self, F f, Saves saves, Gradient df, ArgRole role = ArgRole::kSaved,
             Scalars scalars = {}) {
  expect_floating(op, self, "self");
  const Tensor out = map(self.sizes(), self.dtype(), f, self);
  const Arg saved = saves == Saves::kSelf ? Arg{"self", &self, role} : Arg{"result", &out, role};
  return finish(op, op_math(self.dtype()), out, {{"self", &self}}, scalars, {saved},
                [df](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, df, g, node.saved[0].tensor)};
                });
}

}  // namespace

Tensor neg(const Tensor& self) {
  expect_floating("neg", self, "self");
  const auto negate = [](auto x) { return -x; };
  return finish("neg", op_math(self.dtype()), map(self.sizes(), self.dtype(), negate, self), {{"self", &self}}, {}, {},
                [negate](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, negate, g)};
                });
}

Tensor abs(const Tensor& self) {
  return unary(
      "abs", self, [](auto x) { return std::fabs(x); }, Saves::kSelf,
      // The sign of NaN is 0, as in eager.
      [](auto g, auto x) { return g * cast_like(g, (x > 0) - (x < 0)); });
}

Tensor reciprocal(const Tensor& self) {
  if (amp::intercepts()) return amp::run("reciprocal", reciprocal, self);
  return unary(
      "reciprocal", self, [](auto x) { return 1 / x; }, Saves::kResult, [](auto g, auto y) { return -g * (y * y); });
}

Tensor exp(const Tensor& self) {
  if (amp::intercepts()) return amp::run("exp", exp, self);
  return unary(
      "exp", self, [](auto x) { return std::exp(x); }, Saves::kResult, [](auto g, auto y) { return g * y; });
}

Tensor log(const Tensor& self) {
  if (amp::intercepts()) return amp::run("log", log, self);
  return unary(
      "log", self, [](auto x) { return std::log(x); }, Saves::kSelf, [](auto g, auto x) { return g / x; });
}

Tensor sqrt(const Tensor& self) {
  return unary(
      "sqrt", self, [](auto x) { return std::sqrt(x); }, Saves::kResult, [](auto g, auto y) { return g / (2 * y); });
}

Tensor rsqrt(const Tensor& self) {
  if (amp::intercepts()) return amp::run("rsqrt", rsqrt, self);
  return unary(
      "rsqrt", self, [](auto x) { return 1 / std::sqrt(x); }, Saves::kResult,
      [](auto g, auto y) { return cast_like(g, -0.5) * g * (y * y * y); });
}

Tensor relu(const Tensor& self) {
  return unary(
      "relu", self, [](auto x) { return x < 0 ? decltype(x){0} : x; }, Saves::kResult,
      // A NaN result is not <= 0: its gradient passes.
      [](auto g, auto y) { return y <= 0 ? decltype(g){0} : g; }, ArgRole::kMask);
}

Tensor tanh(const Tensor& self) {
  return unary(
      "tanh", self, [](auto x) { return std::tanh(x); }, Saves::kResult,
      [](auto g, auto y) { return g * (1 - y * y); });
}

Tensor sigmoid(const Tensor& self) {
  return unary(
      "sigmoid", self, [](auto x) { return 1 / (1 + std::exp(-x)); }, Saves::kResult,
      [](auto g, auto y) { return g * (1 - y) * y; });
}

Tensor clamp(const Tensor& self, double min, double max) {
  return unary(
      "clamp", self,
      [=](auto x) {
        const auto low = cast_like(x, min), high = cast_like(x, max);
        if (std::isnan(low) || std::isnan(high)) return std::numeric_limits<decltype(x)>::quiet_NaN();
        const auto raised = x < low ? low : x;
        return raised > high ? high : raised;
      },
      Saves::kSelf,
      [=](auto g, auto x) { return x >= cast_like(x, min) && x <= cast_like(x, max) ? g : decltype(g){0}; },
      ArgRole::kMask, {{"min", min}, {"max", max}});
}

}  // namespace nanhunt::engine
