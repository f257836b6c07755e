// SPDX-License-Identifier: Apache-2.0
// Losses between two tensors of one shape, mean over all elements: mse_loss, smooth_l1_loss,
// binary_cross_entropy_with_logits; l1_loss is sub, abs and mean. As in eager, each element's loss is a stored value of
// the operands' dtype (a square of fp16 overflows from 256) before the mean; backward is one pass in op math.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/memory.h"
#include "src/engine/ops/elementwise.h"

namespace nanhunt::engine {
namespace {

void check_pair(std::string_view op, const Tensor& self, const Tensor& target) {
  expect_floating(op, self, "self");
  expect_dtype(op, target, "target", self.dtype());
  if (target.sizes() != self.sizes()) fail(op, "target of " + describe(self.sizes()), describe(target));
}

template <typename T>
double mean_of(const Tensor& terms) {
  Scratch<T> values(terms.numel());
  read_all(Reader<T>(terms, terms.sizes(), terms.dtype()), 0, terms.numel(), values.data());
  return static_cast<double>(sum_values(values.data(), terms.numel()) / static_cast<T>(terms.numel()));
}

// A gradient of one element, seen as large as the loss's operands.
Tensor spread(const Tensor& g, const Shape& sizes) {
  return make_view(g, sizes, Shape(sizes.size(), 0), g.storage_offset());
}

// Mean of term(self, target); d_self and d_target get (1 / n, grad_output, self, target).
template <typename Term, typename ToSelf, typename ToTarget>
Tensor pair_loss(std::string_view op, const Tensor& self, const Tensor& target, Scalars scalars, Term term,
                 ToSelf d_self, ToTarget d_target) {
  check_pair(op, self, target);
  const DType dtype = self.dtype(), compute = op_math(dtype);
  const Tensor terms = map(self.sizes(), dtype, term, self, target);
  const double mean = compute == DType::kF64 ? mean_of<double>(terms) : mean_of<float>(terms);  // of nothing: 0/0
  const auto share = 1 / static_cast<double>(self.numel());
  return finish(op, compute, Tensor::full({}, mean, dtype), {{"self", &self}, {"target", &target}}, scalars,
                {{"self", &self}, {"target", &target}},
                [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &x = node.saved[0].tensor, &y = node.saved[1].tensor;
                  const auto gradient = [&](const Edge& edge, const auto& df) {
                    const auto f = [&](auto up, auto a, auto b) { return df(cast_like(a, share), up, a, b); };
                    return map_gradient(edge, x.sizes(), dtype, f, spread(g, x.sizes()), x, y);
                  };
                  return {gradient(node.edges[0], d_self), gradient(node.edges[1], d_target)};
                });
}

// The gradient of the target when the loss depends on self - target alone.
template <typename F>
auto negated(F f) {
  return [f](auto share, auto g, auto x, auto y) { return -f(share, g, x, y); };
}

// log(sigmoid(x)) without overflow on either side.
template <typename T>
T log_sigmoid(T x) {
  return std::min(T{0}, x) - std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace

Tensor l1_loss(const Tensor& self, const Tensor& target) {
  if (amp::intercepts()) return amp::run("l1_loss", l1_loss, self, target);
  check_pair("l1_loss", self, target);
  return mean(abs(sub(self, target)));
}

Tensor mse_loss(const Tensor& self, const Tensor& target) {
  if (amp::intercepts()) return amp::run("mse_loss", mse_loss, self, target);
  const auto df = [](auto share, auto g, auto x, auto y) { return 2 * share * (x - y) * g; };
  return pair_loss(
      "mse_loss", self, target, {}, [](auto x, auto y) { return (x - y) * (x - y); }, df, negated(df));
}

Tensor smooth_l1_loss(const Tensor& self, const Tensor& target, double beta) {
  if (amp::intercepts()) {
    return amp::run(
        "smooth_l1_loss", [beta](const Tensor& x, const Tensor& y) { return smooth_l1_loss(x, y, beta); }, self,
        target);
  }
  if (!(beta > 0)) fail("smooth_l1_loss", "a beta above 0 (at 0 it is l1_loss)", std::to_string(beta));
  const auto df = [beta](auto share, auto g, auto x, auto y) {
    const auto d = x - y, b = cast_like(x, beta);
    if (d <= -b) return -share * g;
    if (d >= b) return share * g;
    return share * d * g / b;
  };
  return pair_loss(
      "smooth_l1_loss", self, target, {{"beta", beta}},
      [beta](auto x, auto y) {
        const auto z = std::fabs(x - y), b = cast_like(x, beta), half = cast_like(x, 0.5);
        return z < b ? half * z * z / b : z - half * b;
      },
      df, negated(df));
}

Tensor binary_cross_entropy_with_logits(const Tensor& self, const Tensor& target) {
  if (amp::intercepts()) {
    return amp::run("binary_cross_entropy_with_logits", binary_cross_entropy_with_logits, self, target);
  }
  return pair_loss(
      "binary_cross_entropy_with_logits", self, target, {},
      [](auto x, auto y) { return (1 - y) * x - log_sigmoid(x); },
      [](auto share, auto g, auto x, auto y) { return (1 / (1 + std::exp(-x)) - y) * share * g; },
      [](auto share, auto g, auto x, auto /*y*/) { return -x * share * g; });
}

}  // namespace nanhunt::engine
