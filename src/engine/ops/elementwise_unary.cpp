// SPDX-License-Identifier: Apache-2.0
// neg, abs, reciprocal, exp, expm1, log in four forms, sinh, cosh, tan, asin, acos, sqrt, rsqrt, relu, tanh, sigmoid,
// clamp.
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
  if (amp::intercepts("reciprocal")) return amp::run("reciprocal", reciprocal, self);
  return unary("reciprocal", self, formulas::Reciprocal{}, Saves::kResult, formulas::ReciprocalGradient{});
}

Tensor exp(const Tensor& self) {
  if (amp::intercepts("exp")) return amp::run("exp", exp, self);
  return unary("exp", self, formulas::Exponential{}, Saves::kResult, formulas::Multiply{});
}

Tensor log(const Tensor& self) {
  if (amp::intercepts("log")) return amp::run("log", log, self);
  return unary("log", self, formulas::Logarithm{}, Saves::kSelf, formulas::Divide{});
}

Tensor expm1(const Tensor& self) {
  if (amp::intercepts("expm1")) return amp::run("expm1", expm1, self);
  return unary("expm1", self, formulas::ExponentialMinusOne{}, Saves::kResult, formulas::ExponentialMinusOneGradient{});
}

Tensor log10(const Tensor& self) {
  if (amp::intercepts("log10")) return amp::run("log10", log10, self);
  return unary("log10", self, formulas::Logarithm10{}, Saves::kSelf, formulas::Logarithm10Gradient{});
}

Tensor log2(const Tensor& self) {
  if (amp::intercepts("log2")) return amp::run("log2", log2, self);
  return unary("log2", self, formulas::Logarithm2{}, Saves::kSelf, formulas::Logarithm2Gradient{});
}

Tensor log1p(const Tensor& self) {
  if (amp::intercepts("log1p")) return amp::run("log1p", log1p, self);
  return unary("log1p", self, formulas::LogarithmOnePlus{}, Saves::kSelf, formulas::LogarithmOnePlusGradient{});
}

Tensor sinh(const Tensor& self) {
  if (amp::intercepts("sinh")) return amp::run("sinh", sinh, self);
  return unary("sinh", self, formulas::HyperbolicSine{}, Saves::kSelf, formulas::HyperbolicSineGradient{});
}

Tensor cosh(const Tensor& self) {
  if (amp::intercepts("cosh")) return amp::run("cosh", cosh, self);
  return unary("cosh", self, formulas::HyperbolicCosine{}, Saves::kSelf, formulas::HyperbolicCosineGradient{});
}

Tensor tan(const Tensor& self) {
  if (amp::intercepts("tan")) return amp::run("tan", tan, self);
  return unary("tan", self, formulas::Tangent{}, Saves::kResult, formulas::TangentGradient{});
}

Tensor asin(const Tensor& self) {
  if (amp::intercepts("asin")) return amp::run("asin", asin, self);
  return unary("asin", self, formulas::ArcSine{}, Saves::kSelf, formulas::ArcSineGradient{});
}

Tensor acos(const Tensor& self) {
  if (amp::intercepts("acos")) return amp::run("acos", acos, self);
  return unary("acos", self, formulas::ArcCosine{}, Saves::kSelf, formulas::ArcCosineGradient{});
}

Tensor sqrt(const Tensor& self) {
  return unary("sqrt", self, formulas::SquareRoot{}, Saves::kResult, formulas::SquareRootGradient{});
}

Tensor rsqrt(const Tensor& self) {
  if (amp::intercepts("rsqrt")) return amp::run("rsqrt", rsqrt, self);
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
