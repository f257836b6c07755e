// SPDX-License-Identifier: Apache-2.0
// native_layer_norm over the last dimension. Mean and rstd are formed and kept in op math: eps is added in fp32 even
// when everything else is fp16. With statistics in the input's format all is rounded to that.
#include <cmath>
#include <optional>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/memory.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

using kernels::cuda::in_arithmetic_of;

// Weight and bias in the arithmetic's format; ones and zeros where they are not given.
template <typename T>
std::vector<T> read_affine(const Tensor& tensor, std::int64_t width, T otherwise) {
  std::vector<T> values(static_cast<std::size_t>(width), otherwise);
  if (tensor.defined()) read_all(Reader<T>(tensor, tensor.sizes(), tensor.dtype()), 0, width, values.data());
  return values;
}

template <typename T>
void norm_rows(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out,
                  T* means, T* rstds) {
  using std::sqrt;
  const std::int64_t width = input.size(-1), rows = input.numel() / width;
  const Reader<T> reader(input, input.sizes(), input.dtype());
  const Writer<T> writer(out);
  const std::vector<T> w = read_affine<T>(weight, width, T{1}), b = read_affine<T>(bias, width, T{0});
  Scratch<T> row(width), deviations(width), squares(width), result(width);
  T *d = deviations.data(), *square = squares.data();
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* x = reader.read(r * width, width, row.data());
    const T mean = divided(sum_values(x, width), width);
    for (std::int64_t i = 0; i < width; ++i) {
      d[i] = x[i] - mean;
      square[i] = d[i] * d[i];
    }
    const T variance = divided(sum_values(square, width), width);
    const T rstd = T{1} / sqrt(variance + static_cast<T>(eps));
    T* y = writer.target(r * width, result.data());
    for (std::int64_t i = 0; i < width; ++i) y[i] = d[i] * rstd * w[i] + b[i];
    writer.commit(r * width, width, y);
    means[r] = mean;
    rstds[r] = rstd;
  }
}

struct Saved {
  const Tensor &input, &weight, &mean, &rstd;
};

// d input = rstd (d - mean(d) - xhat mean(d xhat)) with d = grad * weight; weight and bias get sums over the rows.
template <typename T>
std::vector<Tensor> norm_rows_backward(const Tensor& g, const Saved& saved, const Node& node) {
  const std::int64_t width = g.size(-1), rows = g.numel() / width;
  const Reader<T> grads(g, g.sizes(), g.dtype()), inputs(saved.input, saved.input.sizes(), saved.input.dtype());
  const T *means = saved.mean.data<T>(), *rstds = saved.rstd.data<T>();
  const Tensor grad_input = node.edges[0].wanted() ? Tensor::empty(g.sizes(), g.dtype()) : Tensor();
  const auto size = static_cast<std::size_t>(width);
  const std::vector<T> weights = read_affine<T>(saved.weight, width, T{1});
  std::vector<T> grad_weight(size), grad_bias(size);
  Scratch<T> grad_row(width), row(width), normalised(width), weighted(width), products(width), result(width);
  const std::optional<Writer<T>> writer =
      grad_input.defined() ? std::optional<Writer<T>>(grad_input) : std::optional<Writer<T>>();
  const T* w = weights.data();
  T *xhat = normalised.data(), *d = weighted.data(), *product = products.data();
  T *dw = grad_weight.data(), *db = grad_bias.data();
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* dy = grads.read(r * width, width, grad_row.data());
    const T* x = inputs.read(r * width, width, row.data());
    const T mean = means[r], rstd = rstds[r];
    for (std::int64_t i = 0; i < width; ++i) {
      xhat[i] = (x[i] - mean) * rstd;
      dw[i] += dy[i] * xhat[i];
      db[i] += dy[i];
      d[i] = dy[i] * w[i];
      product[i] = d[i] * xhat[i];
    }
    if (!writer) continue;
    const T mean_d = divided(sum_values(d, width), width);
    const T mean_product = divided(sum_values(product, width), width);
    T* dx = writer->target(r * width, result.data());
    for (std::int64_t i = 0; i < width; ++i) dx[i] = rstd * (d[i] - mean_d - xhat[i] * mean_product);
    writer->commit(r * width, width, dx);
  }
  std::vector<Tensor> out{grad_input};
  for (std::size_t k = 1; k < node.edges.size(); ++k) {
    out.push_back(node.edges[k].wanted() ? Tensor::empty(node.edges[k].sizes, node.edges[k].dtype) : Tensor());
    const std::vector<T>& sums = node.edges[k].slot == "weight" ? grad_weight : grad_bias;
    if (out[k].defined()) write_all(Writer<T>(out[k]), 0, width, sums.data());
  }
  return out;
}

std::vector<Tensor> backward_on_device(const Tensor& g, const Saved& saved, const Node& node) {
  AffineGradients out;
  std::vector<Tensor> gradients;
  for (const Edge& edge : node.edges) {
    Tensor grad = edge.wanted() ? Tensor::empty(edge.sizes, edge.dtype, g.device()) : Tensor();
    (edge.slot == "input" ? out.input : edge.slot == "weight" ? out.weight : out.bias) = grad;
    gradients.push_back(std::move(grad));
  }
  device_layer_norm_gradient(g, saved.input, saved.weight, saved.mean, saved.rstd, out);
  return gradients;
}

void check_affine(const Tensor& input, const Tensor& affine, std::string_view slot) {
  if (!affine.defined()) return;
  expect_floating("native_layer_norm", affine, slot);
  if (affine.sizes() != Shape{input.size(-1)}) {
    fail("native_layer_norm", std::string(slot) + " of " + describe(Shape{input.size(-1)}), describe(affine));
  }
  if (affine.dtype() != input.dtype() && affine.dtype() != op_math(input.dtype())) {
    fail("native_layer_norm", std::string(slot) + " in the input's dtype or fp32", describe(affine));
  }
}

}  // namespace

Tensor layer_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps,
                  NormStatistics statistics) {
  if (amp::intercepts("layer_norm")) {
    return amp::run(
        "layer_norm",
        [=](const Tensor& x, const Tensor& w, const Tensor& b) { return layer_norm(x, w, b, eps, statistics); }, input,
        weight, bias);
  }
  expect_floating("native_layer_norm", input, "input");
  if (input.dim() == 0 || input.size(-1) == 0) {
    fail("native_layer_norm", "a last dimension with elements", describe(input));
  }
  check_affine(input, weight, "weight");
  check_affine(input, bias, "bias");
  const DType compute = norm_arithmetic(input.dtype(), statistics);
  Shape kept = input.sizes();
  kept.back() = 1;
  const Device device = common_device("native_layer_norm", {&input, &weight, &bias});
  Tensor out = Tensor::empty(input.sizes(), input.dtype(), device);
  Tensor mean = Tensor::empty(kept, compute, device), rstd = Tensor::empty(kept, compute, device);
  if (!device.is_cpu()) {
    device_layer_norm(input, weight, bias, eps, out, mean, rstd);
  } else {
    in_arithmetic_of(compute, [&]<typename T>(T) {
      norm_rows<T>(input, weight, bias, eps, out, mean.data<T>(), rstd.data<T>());
    });
  }
  std::vector<Arg> inputs{{"input", &input}};
  if (weight.defined()) inputs.push_back({"weight", &weight});
  if (bias.defined()) inputs.push_back({"bias", &bias});
  return finish(
      "native_layer_norm", compute, out, Args(inputs), {{"eps", eps}},
      {{"input", &input}, {"mean", &mean}, {"rstd", &rstd}, {"weight", weight.defined() ? &weight : nullptr}},
      [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
        const Saved saved{node.saved[0].tensor, node.saved[3].tensor, node.saved[1].tensor, node.saved[2].tensor};
        if (!on_cpu(g)) return backward_on_device(g, saved, node);
        return in_arithmetic_of(node.compute_dtype,
                                [&]<typename T>(T) { return norm_rows_backward<T>(g, saved, node); });
      },
      {{"mean", &mean}, {"rstd", &rstd}});
}

}  // namespace nanhunt::engine
