// SPDX-License-Identifier: Apache-2.0
// sum, mean, norm, amax, logsumexp over one dimension or all. Sums run in op math, pairwise, always in the same order.
#include <cmath>
#include <limits>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

using Dim = std::optional<int>;

// A tensor as its reduction sees it: one row of `length` elements per result.
struct Rows {
  Dim dim;  // wrapped
  Tensor view;
  Shape out_sizes;
  std::int64_t length = 0;
};

Rows make_rows(std::string_view op, const Tensor& self, Dim dim, bool keepdim) {
  expect_floating(op, self, "self");
  if (self.dim() == 0 && dim && (*dim == 0 || *dim == -1)) dim.reset();  // a scalar's only dimension
  Rows rows;
  if (!dim) {
    rows.view = self;
    rows.out_sizes = keepdim ? Shape(self.sizes().size(), 1) : Shape{};
    rows.length = self.numel();
    return rows;
  }
  rows.dim = wrap_dim(op, self, *dim);
  rows.view = dim_last(self, *rows.dim);
  rows.out_sizes = self.sizes();
  if (keepdim) {
    rows.out_sizes[static_cast<std::size_t>(*rows.dim)] = 1;
  } else {
    rows.out_sizes.erase(rows.out_sizes.begin() + *rows.dim);
  }
  rows.length = self.size(*rows.dim);
  return rows;
}

// out[r] = reduce(row r in op math, its length); reduce may overwrite the row.
template <typename T, typename Reduce>
Tensor reduce_rows(const Rows& rows, DType out_dtype, Reduce reduce) {
  Tensor out = Tensor::empty(rows.out_sizes, out_dtype);
  const Reader<T> reader(rows.view, rows.view.sizes(), rows.view.dtype());
  std::vector<T> row(static_cast<std::size_t>(rows.length)), results(static_cast<std::size_t>(out.numel()));
  for (std::size_t r = 0; r < results.size(); ++r) {
    read_all(reader, static_cast<std::int64_t>(r) * rows.length, rows.length, row.data());
    results[r] = reduce(row.data(), rows.length);
  }
  write_all(Writer<T>(out), 0, out.numel(), results.data());
  return out;
}

// The first NaN, where there is one.
template <typename T>
T largest_or_nan(const T* x, std::int64_t n) {
  T largest = *x;
  for (std::int64_t i = 1; i < n; ++i) {
    if (x[i] > largest || std::isnan(x[i])) largest = x[i];
    if (std::isnan(largest)) break;
  }
  return largest;
}

using kernels::Reduction;

template <typename Reduce>
Tensor reduce(Reduction kind, const Rows& rows, DType out_dtype, Reduce reduce_row) {
  if (!on_cpu(rows.view)) {
    Tensor out = Tensor::empty(rows.out_sizes, out_dtype, rows.view.device());
    device_reduce(kind, rows.view, rows.length, out);
    return out;
  }
  return rows.view.dtype() == DType::kF64 ? reduce_rows<double>(rows, out_dtype, reduce_row)
                                          : reduce_rows<float>(rows, out_dtype, reduce_row);
}

template <typename Reduce>
Tensor reduce(Reduction kind, const Rows& rows, Reduce reduce_row) {
  return reduce(kind, rows, rows.view.dtype(), reduce_row);
}

// A gradient in the dtype of what it is for.
Tensor converted(const Tensor& gradient, DType dtype) {
  if (gradient.dtype() == dtype) return gradient;
  Tensor out = Tensor::zeros(gradient.sizes(), dtype, gradient.device());
  copy_elements(out, gradient);
  return out;
}

// A result (or its gradient) repeated over the dimensions that were reduced.
Tensor spread(const Tensor& result, const Shape& sizes, Dim dim) {
  Shape strides(sizes.size(), 0);
  if (dim) {
    const auto d = static_cast<std::size_t>(*dim);
    const bool kept = result.sizes().size() == sizes.size();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i != d) strides[i] = result.strides()[i > d && !kept ? i - 1 : i];
    }
  }
  return make_view(result, sizes, std::move(strides), result.storage_offset());
}

Tensor finish_reduction(std::string_view op, Dim dim, const Tensor& self, const Tensor& out, Args saved,
                        decltype(Node::backward) backward) {
  const DType compute = op_math(self.dtype());
  if (dim) {
    return finish(op, compute, out, {{"self", &self}}, {{"dim", static_cast<double>(*dim)}}, saved,
                  std::move(backward));
  }
  return finish(op, compute, out, {{"self", &self}}, {}, saved, std::move(backward));
}

}  // namespace

Tensor sum(const Tensor& self, Dim dim, bool keepdim) {
  if (amp::intercepts("sum")) return amp::run("sum", [=](const Tensor& x) { return sum(x, dim, keepdim); }, self);
  const Rows rows = make_rows("sum", self, dim, keepdim);
  const Tensor out = reduce(Reduction::kSum, rows, amp::output_dtype("sum", self),
                            [](auto* x, std::int64_t n) { return sum_values(x, n); });
  return finish_reduction("sum", rows.dim, self, out, {},
                          [dim = rows.dim](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                            const Edge& edge = node.edges[0];
                            return {map(edge.sizes, edge.dtype, formulas::Identity{}, spread(g, edge.sizes, dim))};
                          });
}

Tensor mean(const Tensor& self, Dim dim, bool keepdim) {
  const Rows rows = make_rows("mean", self, dim, keepdim);
  const auto n = static_cast<double>(rows.length);
  const Tensor out = reduce(Reduction::kMean, rows, [n](auto* x, std::int64_t count) {
    const auto total = sum_values(x, count);
    return total / cast_like(total, n);  // of nothing: 0/0
  });
  return finish_reduction(
      "mean", rows.dim, self, out, {}, [n, dim = rows.dim](const Tensor& g, const Node& node) -> std::vector<Tensor> {
        const Edge& edge = node.edges[0];
        return {map(edge.sizes, node.dtype, formulas::DivideNumber{n}, spread(g, edge.sizes, dim))};
      });
}

Tensor norm(const Tensor& self, Dim dim, bool keepdim) {
  if (amp::intercepts("norm")) return amp::run("norm", [=](const Tensor& x) { return norm(x, dim, keepdim); }, self);
  const Rows rows = make_rows("norm", self, dim, keepdim);
  const Tensor out = reduce(Reduction::kNorm, rows, amp::output_dtype("norm", self), [](auto* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= x[i];
    return std::sqrt(sum_values(x, n));
  });
  return finish_reduction(
      "norm", rows.dim, self, out, {{"self", &self}, {"result", &out}},
      [dim = rows.dim](const Tensor& g, const Node& node) -> std::vector<Tensor> {
        const Edge& edge = node.edges[0];
        const Tensor grad = map(edge.sizes, node.dtype, formulas::NormGradient{}, node.saved[0].tensor,
                                spread(g, edge.sizes, dim), spread(node.saved[1].tensor, edge.sizes, dim));
        return {converted(grad, edge.dtype)};
      });
}

Tensor amax(const Tensor& self, int dim, bool keepdim) {
  const Rows rows = make_rows("amax", self, dim, keepdim);
  if (rows.length == 0 && self.numel() == 0 && numel_of(rows.out_sizes) != 0) {
    fail("amax", "a dimension with elements", describe(self));
  }
  Tensor out = reduce(Reduction::kAmax, rows, [](auto* x, std::int64_t n) { return largest_or_nan(x, n); });
  const auto named = static_cast<double>(rows.dim.value_or(0));
  return finish("amax", op_math(self.dtype()), std::move(out), {{"self", &self}}, {{"dim", named}});
}

// log(sum(exp(x - m))) + m with m the row's largest value, or 0 where that is infinite; in op math from end to end.
Tensor logsumexp(const Tensor& self, int dim, bool keepdim) {
  if (amp::intercepts("logsumexp")) {
    return amp::run("logsumexp", [=](const Tensor& x) { return logsumexp(x, dim, keepdim); }, self);
  }
  const Rows rows = make_rows("logsumexp", self, dim, /*keepdim=*/true);
  if (rows.length == 0) fail("logsumexp", "a dimension with elements", describe(self));
  const DType compute = op_math(self.dtype());
  const Tensor largest =
      reduce(Reduction::kAmax, rows, compute, [](auto* x, std::int64_t n) { return largest_or_nan(x, n); });
  Rows terms = rows;
  const Tensor shift = spread(largest, self.sizes(), rows.dim);
  terms.view = map(self.sizes(), compute, formulas::ShiftedExponential{}, self, shift);
  if (rows.dim) terms.view = dim_last(terms.view, *rows.dim);
  const Tensor total = reduce(Reduction::kSum, terms, [](auto* x, std::int64_t n) { return sum_values(x, n); });
  const Tensor out = Tensor::empty(make_rows("logsumexp", self, dim, keepdim).out_sizes, self.dtype(), self.device());
  const Tensor kept = make_view(out, rows.out_sizes, contiguous_strides(rows.out_sizes), 0);
  map_into(kept, compute, formulas::ShiftedLogarithm{}, total, largest);
  return finish_reduction("logsumexp", rows.dim, self, out, {{"self", &self}, {"result", &out}},
                          [dim = rows.dim](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                            const Shape& sizes = node.edges[0].sizes;
                            return {map(sizes, node.dtype, formulas::LogSumExpGradient{}, spread(g, sizes, dim),
                                        node.saved[0].tensor, spread(node.saved[1].tensor, sizes, dim))};
                          });
}

}  // namespace nanhunt::engine
