// SPDX-License-Identifier: Apache-2.0
// add, sub, mul, div (by tensor or scalar), addcmul, addcdiv, pow, atan2. Backward formulas are those of eager PyTorch.
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

struct BinaryPlan {
  DType dtype;
  Shape shape;
};

// At least one operand floats; the other may be of any dtype and promotes.
BinaryPlan plan(std::string_view op, const Tensor& self, const Tensor& other) {
  expect_defined(op, self, "self");
  expect_defined(op, other, "other");
  const BinaryPlan p{promote(self, other), broadcast(op, self.sizes(), other.sizes())};
  switch (p.dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return p;
    default:
      fail(op, "an operand of fp16, bf16, fp32 or fp64", describe(self) + " and " + describe(other));
  }
}

// Three operands of one dtype, as the in-place forms take them.
BinaryPlan plan(std::string_view op, const Tensor& self, const Tensor& tensor1, const Tensor& tensor2) {
  expect_floating(op, self, "self");
  expect_dtype(op, tensor1, "tensor1", self.dtype());
  expect_dtype(op, tensor2, "tensor2", self.dtype());
  return {self.dtype(), broadcast(op, self.sizes(), broadcast(op, tensor1.sizes(), tensor2.sizes()))};
}

// self + sign * alpha * other. A unit alpha multiplies nothing.
Tensor add_scaled(std::string_view op, const Tensor& self, const Tensor& other, double alpha, double sign) {
  const BinaryPlan p = plan(op, self, other);
  const double factor = sign * alpha;
  Tensor out = factor == 1    ? map(p.shape, p.dtype, formulas::Add{}, self, other)
               : factor == -1 ? map(p.shape, p.dtype, formulas::Subtract{}, self, other)
                              : map(p.shape, p.dtype, formulas::AddScaled{factor}, self, other);
  return finish(op, op_math(p.dtype), std::move(out), {{"self", &self}, {"other", &other}}, {{"alpha", alpha}}, {},
                [factor](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::NumberTimes{factor}, g)};
                });
}

// f(self), which knows the scalar, with gradient df(grad).
template <typename F, typename Gradient>
Tensor with_scalar(std::string_view op, const Tensor& self, double other, F f, Gradient df) {
  expect_floating(op, self, "self");
  return finish(op, op_math(self.dtype()), map(self.sizes(), self.dtype(), f, self), {{"self", &self}},
                {{"other", other}}, {}, [df](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, df, g)};
                });
}

}  // namespace

Tensor add(const Tensor& self, const Tensor& other, double alpha) { return add_scaled("add", self, other, alpha, 1); }
Tensor sub(const Tensor& self, const Tensor& other, double alpha) { return add_scaled("sub", self, other, alpha, -1); }

Tensor mul(const Tensor& self, const Tensor& other) {
  const BinaryPlan p = plan("mul", self, other);
  return finish("mul", op_math(p.dtype), map(p.shape, p.dtype, formulas::Multiply{}, self, other),
                {{"self", &self}, {"other", &other}}, {},
                {{"self", saved_for(other, self)}, {"other", saved_for(self, other)}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Multiply{}, g, b),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::Multiply{}, g, a)};
                });
}

Tensor div(const Tensor& self, const Tensor& other) {
  const BinaryPlan p = plan("div", self, other);
  return finish("div", op_math(p.dtype), map(p.shape, p.dtype, formulas::Divide{}, self, other),
                {{"self", &self}, {"other", &other}}, {}, {{"self", saved_for(other, self)}, {"other", &other}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Divide{}, g, b),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::DivideGradient{}, g, a, b)};
                });
}

Tensor addcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value) {
  if (amp::intercepts("addcmul")) {
    const auto op = [value](const Tensor& x, const Tensor& a, const Tensor& b) { return addcmul(x, a, b, value); };
    return amp::run("addcmul", op, self, tensor1, tensor2);
  }
  const BinaryPlan p = plan("addcmul", self, tensor1, tensor2);
  return finish("addcmul", op_math(p.dtype),
                map(p.shape, p.dtype, formulas::AddProduct{value}, self, tensor1, tensor2),
                {{"self", &self}, {"tensor1", &tensor1}, {"tensor2", &tensor2}}, {{"value", value}},
                {{"tensor1", saved_for(tensor2, tensor1)}, {"tensor2", saved_for(tensor1, tensor2)}},
                [value](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  const formulas::ProductGradient product{value};
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, product, g, b),
                          map_gradient(node.edges[2], g.sizes(), node.dtype, product, g, a)};
                });
}

Tensor addcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value) {
  if (amp::intercepts("addcdiv")) {
    const auto op = [value](const Tensor& x, const Tensor& a, const Tensor& b) { return addcdiv(x, a, b, value); };
    return amp::run("addcdiv", op, self, tensor1, tensor2);
  }
  const BinaryPlan p = plan("addcdiv", self, tensor1, tensor2);
  return finish("addcdiv", op_math(p.dtype),
                map(p.shape, p.dtype, formulas::AddQuotient{value}, self, tensor1, tensor2),
                {{"self", &self}, {"tensor1", &tensor1}, {"tensor2", &tensor2}}, {{"value", value}},
                {{"tensor1", saved_for(tensor2, tensor1)}, {"tensor2", &tensor2}},
                [value](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::NumeratorGradient{value}, g, b),
                          map_gradient(node.edges[2], g.sizes(), node.dtype, formulas::DenominatorGradient{value}, g, a,
                                       b)};
                });
}

Tensor atan2(const Tensor& self, const Tensor& other) {
  if (amp::intercepts("atan2")) return amp::run("atan2", atan2, self, other);
  const BinaryPlan p = plan("atan2", self, other);
  return finish("atan2", op_math(p.dtype), map(p.shape, p.dtype, formulas::ArcTangent{}, self, other),
                {{"self", &self}, {"other", &other}}, {}, {{"self", &self}, {"other", &other}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::ArcTangentGradient{}, g, a, b),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::ArcTangentOther{}, g, a, b)};
                });
}

Tensor pow(const Tensor& self, double exponent) {
  if (amp::intercepts("pow")) {
    return amp::run(
        "pow", [exponent](const Tensor& x) { return pow(x, exponent); }, self);
  }
  expect_floating("pow", self, "self");
  return finish("pow", op_math(self.dtype()), map(self.sizes(), self.dtype(), formulas::Power{exponent}, self),
                {{"self", &self}}, {{"exponent", exponent}}, {{"self", &self}},
                [exponent](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  // A zero exponent gives zeros, whatever the gradient.
                  if (exponent == 0) return {Tensor::zeros(g.sizes(), node.dtype, g.device())};
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::PowerGradient{exponent}, g,
                                       node.saved[0].tensor)};
                });
}

Tensor add(const Tensor& self, double other) {
  return with_scalar("add", self, other, formulas::AddNumber{other}, formulas::Identity{});
}
Tensor sub(const Tensor& self, double other) {
  return with_scalar("sub", self, other, formulas::SubtractNumber{other}, formulas::Identity{});
}
Tensor mul(const Tensor& self, double other) {
  const formulas::MultiplyNumber times{other};
  return with_scalar("mul", self, other, times, times);
}
Tensor div(const Tensor& self, double other) {
  const formulas::DivideNumber over{other};
  return with_scalar("div", self, other, over, over);
}
Tensor div(double self, const Tensor& other) { return mul(reciprocal(other), self); }

}  // namespace nanhunt::engine
