// SPDX-License-Identifier: Apache-2.0
// Losses between two tensors of one shape, mean over all elements: mse_loss, smooth_l1_loss, huber_loss,
// binary_cross_entropy and its form with logits; l1_loss is sub, abs and mean. As in eager, each element's loss is a
// stored value of the operands' dtype (a square of fp16 overflows from 256) before the mean; backward is one pass in op
// math.
#include <algorithm>
#include <stdexcept>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/memory.h"
#include "src/engine/ops/loops/elementwise.h"

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

// The mean of the stored losses, stored in their dtype; of nothing: 0/0.
Tensor mean_loss(const Tensor& terms) {
  if (!on_cpu(terms)) {
    Tensor out = Tensor::empty({}, terms.dtype(), terms.device());
    device_reduce(kernels::Reduction::kMean, terms, terms.numel(), out);
    return out;
  }
  const double mean = op_math(terms.dtype()) == DType::kF64 ? mean_of<double>(terms) : mean_of<float>(terms);
  return Tensor::full({}, mean, terms.dtype());
}

// Mean of term(self, target); d_self and d_target get (grad_output, self, target) and know 1 / n.
template <typename Term, typename ToSelf, typename ToTarget>
Tensor pair_loss(std::string_view op, const Tensor& self, const Tensor& target, Scalars scalars, Term term,
                 ToSelf d_self, ToTarget d_target) {
  check_pair(op, self, target);
  const DType dtype = self.dtype(), compute = op_math(dtype);
  const Tensor terms = map(self.sizes(), dtype, term, self, target);
  return finish(op, compute, mean_loss(terms), {{"self", &self}, {"target", &target}}, scalars,
                {{"self", &self}, {"target", &target}}, [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &x = node.saved[0].tensor, &y = node.saved[1].tensor;
                  const Tensor up = spread(g, x.sizes());
                  return {map_gradient(node.edges[0], x.sizes(), dtype, d_self, up, x, y),
                          map_gradient(node.edges[1], x.sizes(), dtype, d_target, up, x, y)};
                });
}

// In PyTorch's words, which refuses NaN as well.
void expect_probabilities(std::string_view op, std::string_view name, const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector();
  if (std::ranges::all_of(values, [](double p) { return p >= 0 && p <= 1; })) return;
  throw std::invalid_argument("[" + std::string(op) + "] all elements of " + std::string(name) +
                              " should be between 0 and 1");
}

double share_of(const Tensor& self) { return 1 / static_cast<double>(self.defined() ? self.numel() : 1); }

}  // namespace

Tensor l1_loss(const Tensor& self, const Tensor& target) {
  if (amp::intercepts("l1_loss")) return amp::run("l1_loss", l1_loss, self, target);
  check_pair("l1_loss", self, target);
  return mean(abs(sub(self, target)));
}

Tensor mse_loss(const Tensor& self, const Tensor& target) {
  if (amp::intercepts("mse_loss")) return amp::run("mse_loss", mse_loss, self, target);
  const double share = share_of(self);
  return pair_loss("mse_loss", self, target, {}, formulas::SquaredError{}, formulas::SquaredErrorGradient{share},
                   formulas::SquaredErrorTarget{share});
}

Tensor smooth_l1_loss(const Tensor& self, const Tensor& target, double beta) {
  if (amp::intercepts("smooth_l1_loss")) {
    return amp::run(
        "smooth_l1_loss", [beta](const Tensor& x, const Tensor& y) { return smooth_l1_loss(x, y, beta); }, self,
        target);
  }
  if (!(beta > 0)) fail("smooth_l1_loss", "a beta above 0 (at 0 it is l1_loss)", std::to_string(beta));
  const double share = share_of(self);
  return pair_loss("smooth_l1_loss", self, target, {{"beta", beta}}, formulas::SmoothL1{beta},
                   formulas::SmoothL1Gradient{share, beta}, formulas::SmoothL1Target{share, beta});
}

Tensor huber_loss(const Tensor& self, const Tensor& target, double delta) {
  if (amp::intercepts("huber_loss")) {
    return amp::run(
        "huber_loss", [delta](const Tensor& x, const Tensor& y) { return huber_loss(x, y, delta); }, self, target);
  }
  if (!(delta > 0)) fail("huber_loss", "a delta above 0", std::to_string(delta));
  const double share = share_of(self);
  return pair_loss("huber_loss", self, target, {{"delta", delta}}, formulas::Huber{delta},
                   formulas::HuberGradient{share, delta}, formulas::HuberTarget{share, delta});
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor& target) {
  constexpr std::string_view kOp = "binary_cross_entropy";
  if (amp::intercepts(kOp)) return amp::run(kOp, binary_cross_entropy, self, target);
  check_pair(kOp, self, target);
  if (on_cpu(self) && on_cpu(target)) {
    expect_probabilities(kOp, "input", self);
    expect_probabilities(kOp, "target", target);
  }
  const auto count = static_cast<double>(self.numel());
  return pair_loss(kOp, self, target, {}, formulas::CrossEntropy{}, formulas::CrossEntropyOfProbability{count},
                   formulas::CrossEntropyOfTarget{count});
}

Tensor binary_cross_entropy_with_logits(const Tensor& self, const Tensor& target) {
  if (amp::intercepts("binary_cross_entropy_with_logits")) {
    return amp::run("binary_cross_entropy_with_logits", binary_cross_entropy_with_logits, self, target);
  }
  const double share = share_of(self);
  return pair_loss("binary_cross_entropy_with_logits", self, target, {}, formulas::CrossEntropyWithLogits{},
                   formulas::CrossEntropyGradient{share}, formulas::CrossEntropyTarget{share});
}

}  // namespace nanhunt::engine
