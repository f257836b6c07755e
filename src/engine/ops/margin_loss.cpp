// SPDX-License-Identifier: Apache-2.0
// Losses and a similarity that are made of other ops, each of them observed, as in eager PyTorch: margin_ranking_loss,
// hinge_embedding_loss, triplet_margin_loss, cosine_embedding_loss, poisson_nll_loss, cosine_similarity. One op a
// statement wherever two are arguments of a third: the order in which observers are told is then the same everywhere.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

Tensor above_zero(const Tensor& x) { return clamp(x, 0, HUGE_VAL); }

// The distance of rows, which are kept apart by PyTorch's 1e-6.
Tensor distance(const Tensor& a, const Tensor& b) { return norm(add(sub(a, b), 1e-6), -1); }

void expect_labels(std::string_view op, const Tensor& target, const Shape& sizes) {
  expect_floating(op, target, "target");
  if (target.sizes() != sizes) fail(op, "target of " + describe(sizes), describe(target));
}

}  // namespace

Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int dim, double eps) {
  if (amp::intercepts("cosine_similarity")) {
    const auto similarity = [=](const Tensor& a, const Tensor& b) { return cosine_similarity(a, b, dim, eps); };
    return amp::run("cosine_similarity", similarity, x1, x2);
  }
  expect_floating("cosine_similarity", x1, "x1");
  expect_floating("cosine_similarity", x2, "x2");
  const auto unit = [=](const Tensor& x) { return div(x, clamp(norm(x, dim, true), eps, HUGE_VAL)); };
  const Tensor unit1 = unit(x1), unit2 = unit(x2);
  return sum(mul(unit1, unit2), dim);
}

Tensor margin_ranking_loss(const Tensor& input1, const Tensor& input2, const Tensor& target, double margin) {
  constexpr std::string_view kOp = "margin_ranking_loss";
  if (amp::intercepts(kOp)) {
    const auto loss = [margin](const Tensor& a, const Tensor& b, const Tensor& y) {
      return margin_ranking_loss(a, b, y, margin);
    };
    return amp::run(kOp, loss, input1, input2, target);
  }
  expect_floating(kOp, input1, "input1");
  expect_floating(kOp, input2, "input2");
  expect_labels(kOp, target, input1.sizes());
  const Tensor difference = sub(input1, input2), sign = neg(target);
  return mean(above_zero(add(mul(sign, difference), margin)));
}

Tensor hinge_embedding_loss(const Tensor& self, const Tensor& target, double margin) {
  constexpr std::string_view kOp = "hinge_embedding_loss";
  if (amp::intercepts(kOp)) {
    const auto loss = [margin](const Tensor& x, const Tensor& y) { return hinge_embedding_loss(x, y, margin); };
    return amp::run(kOp, loss, self, target);
  }
  expect_floating(kOp, self, "self");
  expect_labels(kOp, target, self.sizes());
  const Tensor short_of = above_zero(add(neg(self), margin)), is_close = eq(target, 1);
  const Tensor far = masked_fill(short_of, is_close, 0), is_far = eq(target, -1);
  const Tensor close = masked_fill(self, is_far, 0);
  return mean(add(far, close));
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin) {
  constexpr std::string_view kOp = "triplet_margin_loss";
  if (amp::intercepts(kOp)) {
    const auto loss = [margin](const Tensor& a, const Tensor& p, const Tensor& n) {
      return triplet_margin_loss(a, p, n, margin);
    };
    return amp::run(kOp, loss, anchor, positive, negative);
  }
  expect_floating(kOp, anchor, "anchor");
  expect_floating(kOp, positive, "positive");
  expect_floating(kOp, negative, "negative");
  const Tensor to_positive = distance(anchor, positive), to_negative = distance(anchor, negative);
  return mean(above_zero(sub(add(to_positive, margin), to_negative)));
}

Tensor cosine_embedding_loss(const Tensor& input1, const Tensor& input2, const Tensor& target, double margin) {
  constexpr std::string_view kOp = "cosine_embedding_loss";
  if (amp::intercepts(kOp)) {
    const auto loss = [margin](const Tensor& a, const Tensor& b, const Tensor& y) {
      return cosine_embedding_loss(a, b, y, margin);
    };
    return amp::run(kOp, loss, input1, input2, target);
  }
  expect_floating(kOp, input1, "input1");
  expect_floating(kOp, input2, "input2");
  expect_dim(kOp, input1, "input1", 2);
  expect_labels(kOp, target, {input1.size(0)});
  const auto square = [](const Tensor& x) { return add(sum(mul(x, x), 1), 1e-12); };
  const Tensor product = sum(mul(input1, input2), 1), square1 = square(input1), square2 = square(input2);
  const Tensor length = sqrt(mul(square1, square2));
  const Tensor cosine = div(product, length), opposite = add(neg(cosine), 1), is_far = eq(target, -1);
  const Tensor close = masked_fill(opposite, is_far, 0), beyond = above_zero(sub(cosine, margin));
  const Tensor is_close = eq(target, 1), far = masked_fill(beyond, is_close, 0);
  return mean(add(close, far));
}

Tensor poisson_nll_loss(const Tensor& input, const Tensor& target) {
  if (amp::intercepts("poisson_nll_loss")) return amp::run("poisson_nll_loss", poisson_nll_loss, input, target);
  expect_floating("poisson_nll_loss", input, "input");
  expect_labels("poisson_nll_loss", target, input.sizes());
  const Tensor product = mul(target, input), rate = exp(input);
  return mean(sub(rate, product));
}

}  // namespace nanhunt::engine
