// SPDX-License-Identifier: Apache-2.0
// neg, abs, reciprocal, exp, log, sqrt, rsqrt, relu, tanh, sigmoid, clamp.
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/elementwise.h"

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
  const formulas::Negate negate;
  return finish("neg", op_math(self.dtype()), map(self.sizes(), self.dtype(), negate, self), {{"self", &self}}, {}, {},
                [negate](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, negate, g)};
                });
}

Tensor abs(const Tensor& self) {
  return unary("abs", self, formulas::Absolute{}, Saves::kSelf, formulas::AbsoluteGradient{});
}

Tensor reciprocal(const Tensor& self) {
  if (amp::intercepts()) return amp::run("reciprocal", reciprocal, self);
  return unary("reciprocal", self, formulas::Reciprocal{}, Saves::kResult, formulas::ReciprocalGradient{});
}

Tensor exp(const Tensor& self) {
  if (amp::intercepts()) return amp::run("exp", exp, self);
  return unary("exp", self, formulas::Exponential{}, Saves::kResult, formulas::Multiply{});
}

Tensor log(const Tensor& self) {
  if (amp::intercepts()) return amp::run("log", log, self);
  return unary("log", self, formulas::Logarithm{}, Saves::kSelf, formulas::Divide{});
}

Tensor sqrt(const Tensor& self) {
  return unary("sqrt", self, formulas::SquareRoot{}, Saves::kResult, formulas::SquareRootGradient{});
}

Tensor rsqrt(const Tensor& self) {
  if (amp::intercepts()) return amp::run("rsqrt", rsqrt, self);
  return unary("rsqrt", self, formulas::InverseRoot{}, Saves::kResult, formulas::InverseRootGradient{});
}

Tensor relu(const Tensor& self) {
  return unary("relu", self, formulas::Relu{}, Saves::kResult, formulas::ReluGradient{}, ArgRole::kMask);
}

Tensor tanh(const Tensor& self) {
  return unary("tanh", self, formulas::Tanh{}, Saves::kResult, formulas::TanhGradient{});
}

Tensor sigmoid(const Tensor& self) {
  return unary("sigmoid", self, formulas::Sigmoid{}, Saves::kResult, formulas::SigmoidGradient{});
}

Tensor clamp(const Tensor& self, double min, double max) {
  return unary("clamp", self, formulas::Clamp{min, max}, Saves::kSelf, formulas::ClampGradient{min, max},
               ArgRole::kMask, {{"min", min}, {"max", max}});
}

}  // namespace nanhunt::engine
