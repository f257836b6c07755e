// SPDX-License-Identifier: Apache-2.0
// native_layer_norm over the last dimension. Mean and rstd are formed and kept in op math: eps is added in fp32 even
// when everything else is fp16.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/strided.h"

namespace nanhunt::engine {
namespace {

// Weight and bias in op math; ones and zeros where they are not given.
template <typename T>
std::vector<T> read_affine(const Tensor& tensor, std::int64_t width, T otherwise) {
  std::vector<T> values(static_cast<std::size_t>(width), otherwise);
  if (tensor.defined()) read_all(Reader<T>(tensor, tensor.sizes(), tensor.dtype()), 0, width, values.data());
  return values;
}

template <typename T>
void forward_rows(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out,
                  T* means, T* rstds) {
  const std::int64_t width = input.size(-1), rows = input.numel() / width;
  const Reader<T> reader(input, input.sizes(), input.dtype());
  const Writer<T> writer(out);
  const std::vector<T> w = read_affine<T>(weight, width, 1), b = read_affine<T>(bias, width, 0);
  std::vector<T> row(w.size()), squares(w.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    read_all(reader, r * width, width, row.data());
    const T mean = sum_values(row.data(), width) / static_cast<T>(width);
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] -= mean;
      squares[i] = row[i] * row[i];
    }
    const T variance = sum_values(squares.data(), width) / static_cast<T>(width);
    const T rstd = 1 / std::sqrt(variance + static_cast<T>(eps));
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = row[i] * rstd * w[i] + b[i];
    write_all(writer, r * width, width, row.data());
    means[r] = mean;
    rstds[r] = rstd;
  }
}

struct Saved {
  const Tensor &input, &weight, &mean, &rstd;
};

// d input = rstd (d - mean(d) - xhat mean(d xhat)) with d = grad * weight; weight and bias get sums over the rows.
template <typename T>
std::vector<Tensor> backward_rows(const Tensor& g, const Saved& saved, const Node& node) {
  const std::int64_t width = g.size(-1), rows = g.numel() / width;
  const Reader<T> grads(g, g.sizes(), g.dtype()), inputs(saved.input, saved.input.sizes(), saved.input.dtype());
  const T *means = saved.mean.data<T>(), *rstds = saved.rstd.data<T>();
  const Tensor grad_input = node.edges[0].wanted() ? Tensor::zeros(g.sizes(), g.dtype()) : Tensor();
  const std::vector<T> w = read_affine<T>(saved.weight, width, 1);
  std::vector<T> dy(w.size()), xhat(w.size()), products(w.size()), grad_weight(w.size()), grad_bias(w.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    read_all(grads, r * width, width, dy.data());
    read_all(inputs, r * width, width, xhat.data());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      xhat[i] = (xhat[i] - means[r]) * rstds[r];
      grad_weight[i] += dy[i] * xhat[i];
      grad_bias[i] += dy[i];
      dy[i] *= w[i];
      products[i] = dy[i] * xhat[i];
    }
    if (!grad_input.defined()) continue;
    const T mean_d = sum_values(dy.data(), width) / static_cast<T>(width);
    const T mean_product = sum_values(products.data(), width) / static_cast<T>(width);
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = rstds[r] * (dy[i] - mean_d - xhat[i] * mean_product);
    write_all(Writer<T>(grad_input), r * width, width, dy.data());
  }
  std::vector<Tensor> out{grad_input};
  for (std::size_t k = 1; k < node.edges.size(); ++k) {
    out.push_back(node.edges[k].wanted() ? Tensor::zeros(node.edges[k].sizes, node.edges[k].dtype) : Tensor());
    const std::vector<T>& sums = node.edges[k].slot == "weight" ? grad_weight : grad_bias;
    if (out[k].defined()) write_all(Writer<T>(out[k]), 0, width, sums.data());
  }
  return out;
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

Tensor layer_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps) {
  if (amp::intercepts()) {
    return amp::run(
        "layer_norm",
        [eps](const Tensor& x, const Tensor& w, const Tensor& b) { return layer_norm(x, w, b, eps); }, input, weight,
        bias);
  }
  expect_floating("native_layer_norm", input, "input");
  if (input.dim() == 0 || input.size(-1) == 0) {
    fail("native_layer_norm", "a last dimension with elements", describe(input));
  }
  check_affine(input, weight, "weight");
  check_affine(input, bias, "bias");
  const DType compute = op_math(input.dtype());
  Shape kept = input.sizes();
  kept.back() = 1;
  Tensor out = Tensor::zeros(input.sizes(), input.dtype());
  Tensor mean = Tensor::zeros(kept, compute), rstd = Tensor::zeros(kept, compute);
  if (compute == DType::kF64) {
    forward_rows<double>(input, weight, bias, eps, out, mean.data<double>(), rstd.data<double>());
  } else {
    forward_rows<float>(input, weight, bias, eps, out, mean.data<float>(), rstd.data<float>());
  }
  std::vector<Arg> inputs{{"input", &input}};
  if (weight.defined()) inputs.push_back({"weight", &weight});
  if (bias.defined()) inputs.push_back({"bias", &bias});
  return finish(
      "native_layer_norm", compute, out, Args(inputs), {{"eps", eps}},
      {{"input", &input}, {"mean", &mean}, {"rstd", &rstd}, {"weight", weight.defined() ? &weight : nullptr}},
      [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
        const Saved saved{node.saved[0].tensor, node.saved[3].tensor, node.saved[1].tensor, node.saved[2].tensor};
        return node.compute_dtype == DType::kF64 ? backward_rows<double>(g, saved, node)
                                                 : backward_rows<float>(g, saved, node);
      },
      {{"mean", &mean}, {"rstd", &rstd}});
}

}  // namespace nanhunt::engine
