// SPDX-License-Identifier: Apache-2.0
// nll_loss (mean over targets that are not ignored) and cross_entropy.
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/loops/indices.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

// Returns how many targets count.
std::int64_t check_targets(std::int64_t classes, const std::vector<std::int64_t>& targets, std::int64_t ignore) {
  std::int64_t counted = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignore) continue;
    expect_index("nll_loss", "target", i, targets[i], classes);
    ++counted;
  }
  return counted;
}

// Where the log probabilities of the targets that count lie, row-major.
std::vector<std::int64_t> positions_of(const std::vector<std::int64_t>& targets, std::int64_t ignore,
                                       std::int64_t classes) {
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != ignore) positions.push_back(static_cast<std::int64_t>(i) * classes + targets[i]);
  }
  return positions;
}

std::vector<std::int64_t> positions_in(const Tensor& target, std::int64_t ignore, std::int64_t classes) {
  const std::vector<std::int64_t> targets = read_indices("nll_loss", target, "target");
  check_targets(classes, targets, ignore);
  return positions_of(targets, ignore, classes);
}

Tensor loss_on_device(const Tensor& log_probs, const Tensor& target, std::int64_t ignore) {
  Tensor out = Tensor::empty({}, log_probs.dtype(), log_probs.device());
  device_picked_loss(log_probs, positions_in(target, ignore, log_probs.size(1)), out);
  return out;
}

Tensor gradient_on_device(const Edge& edge, const Tensor& g, const Tensor& target, std::int64_t ignore) {
  Tensor grad = Tensor::zeros(edge.sizes, edge.dtype, g.device());
  device_picked_loss_gradient(g, positions_in(target, ignore, edge.sizes[1]), grad);
  return grad;
}

template <typename T>
Tensor mean_loss(const Tensor& log_probs, const std::vector<std::int64_t>& targets, std::int64_t ignore,
                 std::int64_t counted) {
  std::vector<T> terms;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignore) continue;
    const std::int64_t at = static_cast<std::int64_t>(i) * log_probs.size(1) + targets[i];
    terms.push_back(static_cast<T>(-log_probs.at(at)));
  }
  const T loss = sum_values(terms.data(), counted) / static_cast<T>(counted);  // none counted: 0/0
  return Tensor::full({}, static_cast<double>(loss), log_probs.dtype());
}

template <typename T>
Tensor loss_gradient(const Edge& edge, double g, const std::vector<std::int64_t>& targets, std::int64_t ignore,
                     std::int64_t counted) {
  const double value = static_cast<double>(-(static_cast<T>(g) / static_cast<T>(counted)));
  Tensor grad = Tensor::zeros(edge.sizes, edge.dtype);
  const std::size_t size = dtype_size(edge.dtype);
  auto* data = static_cast<std::byte*>(grad.raw());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignore) continue;
    const std::size_t at = i * static_cast<std::size_t>(edge.sizes[1]) + static_cast<std::size_t>(targets[i]);
    store_from_f64(edge.dtype, data + at * size, value);
  }
  return grad;
}

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index) {
  if (amp::intercepts("nll_loss")) {
    const auto loss = [ignore_index](const Tensor& x, const Tensor& y) { return nll_loss(x, y, ignore_index); };
    return amp::run("nll_loss", loss, log_probs, target);
  }
  expect_floating("nll_loss", log_probs, "self");
  expect_dim("nll_loss", log_probs, "self", 2);
  const std::vector<std::int64_t> targets = read_indices("nll_loss", target, "target");
  if (target.sizes() != Shape{log_probs.size(0)}) {
    fail("nll_loss", "target of " + describe(Shape{log_probs.size(0)}), describe(target));
  }
  const std::int64_t counted = check_targets(log_probs.size(1), targets, ignore_index);
  const bool wide = log_probs.dtype() == DType::kF64;
  return finish("nll_loss", op_math(log_probs.dtype()),
                !on_cpu(log_probs)
                    ? loss_on_device(log_probs, target, ignore_index)
                    : (wide ? mean_loss<double> : mean_loss<float>)(log_probs, targets, ignore_index, counted),
                {{"self", &log_probs}, {"target", &target, ArgRole::kIndex}},
                {{"ignore_index", static_cast<double>(ignore_index)}}, {{"target", &target, ArgRole::kIndex}},
                [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  if (!on_cpu(g)) return {gradient_on_device(node.edges[0], g, node.saved[0].tensor, ignore_index)};
                  const auto classes = read_indices("nll_loss_backward", node.saved[0].tensor, "target");
                  return {(wide ? loss_gradient<double> : loss_gradient<float>)(node.edges[0], g.item(), classes,
                                                                                ignore_index, counted)};
                });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, std::int64_t ignore_index) {
  if (amp::intercepts("cross_entropy_loss")) {
    const auto loss = [ignore_index](const Tensor& x, const Tensor& y) { return cross_entropy(x, y, ignore_index); };
    return amp::run("cross_entropy_loss", loss, logits, target);
  }
  return nll_loss(log_softmax(logits, 1), target, ignore_index);
}

}  // namespace nanhunt::engine
