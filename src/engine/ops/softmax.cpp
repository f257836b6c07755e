// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax over one dimension. A row of only -Inf gives NaN, as in eager.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/strided.h"

namespace nanhunt::engine {
namespace {

// Each row goes through op math once; only the results are rounded.
template <typename T>
void forward_rows(const Tensor& self, const Tensor& out, bool log) {
  const Reader<T> reader(self, self.sizes(), self.dtype());
  const Writer<T> writer(out);
  const std::int64_t length = self.sizes().back();
  std::vector<T> x(static_cast<std::size_t>(length)), e(x.size());
  for (std::int64_t start = 0, n = self.numel(); start < n; start += length) {
    read_all(reader, start, length, x.data());
    const T largest = *std::max_element(x.begin(), x.end());  // a NaN anywhere makes the sum NaN
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] -= largest;
      e[i] = std::exp(x[i]);
    }
    const T total = sum_values(e.data(), length);
    const T log_total = std::log(total);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = log ? x[i] - log_total : e[i] / total;
    write_all(writer, start, length, x.data());
  }
}

template <typename T>
void backward_rows(const Tensor& g, const Tensor& result, const Tensor& out, bool log) {
  const Reader<T> grads(g, g.sizes(), g.dtype()), results(result, result.sizes(), result.dtype());
  const Writer<T> writer(out);
  const std::int64_t length = g.sizes().back();
  std::vector<T> dy(static_cast<std::size_t>(length)), y(dy.size()), products(dy.size());
  for (std::int64_t start = 0, n = g.numel(); start < n; start += length) {
    read_all(grads, start, length, dy.data());
    read_all(results, start, length, y.data());
    for (std::size_t i = 0; i < y.size(); ++i) products[i] = log ? dy[i] : dy[i] * y[i];
    const T total = sum_values(products.data(), length);
    for (std::size_t i = 0; i < y.size(); ++i) dy[i] = log ? dy[i] - std::exp(y[i]) * total : (dy[i] - total) * y[i];
    write_all(writer, start, length, dy.data());
  }
}

Tensor softmax_op(std::string_view op, const Tensor& self, int dim, bool log) {
  expect_floating(op, self, "self");
  dim = wrap_dim(op, self, dim);
  const Tensor out = Tensor::zeros(self.sizes(), amp::output_dtype(op, self));
  const bool wide = self.dtype() == DType::kF64;
  if (self.numel() > 0) {
    (wide ? forward_rows<double> : forward_rows<float>)(dim_last(self, dim), dim_last(out, dim), log);
  }
  return finish(op, op_math(self.dtype()), out, {{"self", &self}}, {{"dim", static_cast<double>(dim)}},
                {{"result", &out}}, [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor grad = Tensor::zeros(g.sizes(), node.edges[0].dtype);
                  if (g.numel() > 0) {
                    (wide ? backward_rows<double> : backward_rows<float>)(dim_last(g, dim),
                                                                          dim_last(node.saved[0].tensor, dim),
                                                                          dim_last(grad, dim), log);
                  }
                  return {grad};
                });
}

}  // namespace

Tensor softmax(const Tensor& self, int dim) { return softmax_op("softmax", self, dim, /*log=*/false); }
Tensor log_softmax(const Tensor& self, int dim) { return softmax_op("log_softmax", self, dim, /*log=*/true); }

}  // namespace nanhunt::engine
