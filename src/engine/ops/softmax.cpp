// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax over one dimension. A row of only -Inf gives NaN, as in eager.
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_math.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/memory.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

void exp_all(const float* x, float* out, std::int64_t count) {
  kernels::exp_f32(x, out, static_cast<std::size_t>(count));
}
void exp_all(const double* x, double* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = std::exp(x[i]);
}

// NaN does not count: it shows in the sum.
template <typename T>
T largest_of(const T* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<T>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
  }
  for (std::int64_t k = 0; i + k < count; ++k) lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
  return *std::max_element(lanes, lanes + kLanes);
}

// Each row goes through op math once; only the results are rounded.
template <typename T>
void forward_rows(const Tensor& self, const Tensor& out, bool log) {
  const Reader<T> reader(self, self.sizes(), self.dtype());
  const Writer<T> writer(out);
  const std::int64_t length = self.sizes().back();
  Scratch<T> row(length), shifted(length), exps(length), result(length);
  T *d = shifted.data(), *e = exps.data();
  for (std::int64_t start = 0, n = self.numel(); start < n; start += length) {
    const T* x = reader.read(start, length, row.data());
    const T largest = largest_of(x, length);
    for (std::int64_t i = 0; i < length; ++i) d[i] = x[i] - largest;
    exp_all(d, e, length);
    const T total = sum_values(e, length);
    T* y = writer.target(start, result.data());
    if (log) {
      const T log_total = std::log(total);
      for (std::int64_t i = 0; i < length; ++i) y[i] = d[i] - log_total;
    } else {
      for (std::int64_t i = 0; i < length; ++i) y[i] = e[i] / total;
    }
    writer.commit(start, length, y);
  }
}

template <typename T>
void backward_rows(const Tensor& g, const Tensor& result, const Tensor& out, bool log) {
  const Reader<T> grads(g, g.sizes(), g.dtype()), results(result, result.sizes(), result.dtype());
  const Writer<T> writer(out);
  const std::int64_t length = g.sizes().back();
  Scratch<T> grad_row(length), result_row(length), scratch(length), out_row(length);
  T* work = scratch.data();
  for (std::int64_t start = 0, n = g.numel(); start < n; start += length) {
    const T* dy = grads.read(start, length, grad_row.data());
    const T* y = results.read(start, length, result_row.data());
    T* dx = writer.target(start, out_row.data());
    if (log) {
      const T total = sum_values(dy, length);
      exp_all(y, work, length);
      for (std::int64_t i = 0; i < length; ++i) dx[i] = dy[i] - work[i] * total;
    } else {
      for (std::int64_t i = 0; i < length; ++i) work[i] = dy[i] * y[i];
      const T total = sum_values(work, length);
      for (std::int64_t i = 0; i < length; ++i) dx[i] = (dy[i] - total) * y[i];
    }
    writer.commit(start, length, dx);
  }
}

Tensor softmax_op(std::string_view op, const Tensor& self, int dim, bool log) {
  expect_floating(op, self, "self");
  dim = wrap_dim(op, self, dim);
  const Tensor out = Tensor::empty(self.sizes(), amp::output_dtype(op, self), self.device());
  const bool wide = self.dtype() == DType::kF64;
  if (self.numel() > 0 && !on_cpu(self)) {
    device_softmax(dim_last(self, dim), dim_last(out, dim), log);
  } else if (self.numel() > 0) {
    (wide ? forward_rows<double> : forward_rows<float>)(dim_last(self, dim), dim_last(out, dim), log);
  }
  return finish(op, op_math(self.dtype()), out, {{"self", &self}}, {{"dim", static_cast<double>(dim)}},
                {{"result", &out}}, [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor grad = Tensor::empty(g.sizes(), node.edges[0].dtype, g.device());
                  if (g.numel() > 0 && !on_cpu(g)) {
                    device_softmax_gradient(dim_last(g, dim), dim_last(node.saved[0].tensor, dim), dim_last(grad, dim),
                                            log);
                  } else if (g.numel() > 0) {
                    (wide ? backward_rows<double> : backward_rows<float>)(dim_last(g, dim),
                                                                          dim_last(node.saved[0].tensor, dim),
                                                                          dim_last(grad, dim), log);
                  }
                  return {grad};
                });
}

}  // namespace

Tensor softmax(const Tensor& self, int dim) {
  if (amp::intercepts("softmax")) return amp::run("softmax", [dim](const Tensor& x) { return softmax(x, dim); }, self);
  return softmax_op("softmax", self, dim, /*log=*/false);
}

Tensor log_softmax(const Tensor& self, int dim) {
  if (amp::intercepts("log_softmax")) {
    return amp::run("log_softmax", [dim](const Tensor& x) { return log_softmax(x, dim); }, self);
  }
  return softmax_op("log_softmax", self, dim, /*log=*/true);
}

}  // namespace nanhunt::engine
