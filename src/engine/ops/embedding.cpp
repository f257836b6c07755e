// SPDX-License-Identifier: Apache-2.0
// embedding: rows of a table. The gradient of a row that is used more than once is summed in op math.
#include <cstring>

#include "nanhunt/engine/ops.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/loops/indices.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

template <typename T>
Tensor table_gradient(const Tensor& g, const Edge& edge, const std::vector<std::int64_t>& rows) {
  const std::int64_t width = edge.sizes[1];
  std::vector<T> sums(static_cast<std::size_t>(numel_of(edge.sizes))), row(static_cast<std::size_t>(width));
  const Reader<T> reader(g, g.sizes(), g.dtype());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    read_all(reader, static_cast<std::int64_t>(i) * width, width, row.data());
    T* to = sums.data() + rows[i] * width;
    for (std::size_t k = 0; k < row.size(); ++k) to[k] += row[k];
  }
  Tensor grad = Tensor::zeros(edge.sizes, edge.dtype);
  write_all(Writer<T>(grad), 0, grad.numel(), sums.data());
  return grad;
}

void copy_rows(const Tensor& weight, const std::vector<std::int64_t>& rows, Tensor& out) {
  const Tensor table = weight.is_contiguous() ? weight : weight.clone();
  const std::size_t row_bytes = static_cast<std::size_t>(weight.size(1)) * dtype_size(weight.dtype());
  const auto* from = table.data<std::byte>();
  auto* to = out.data<std::byte>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * row_bytes, from + static_cast<std::size_t>(rows[i]) * row_bytes, row_bytes);
  }
}

std::vector<std::int64_t> rows_in(std::string_view op, const Tensor& indices, std::int64_t table_rows) {
  std::vector<std::int64_t> rows = read_indices(op, indices, "indices");
  for (std::size_t i = 0; i < rows.size(); ++i) expect_index(op, "indices", i, rows[i], table_rows);
  return rows;
}

Tensor table_gradient_on_device(const Tensor& g, const Edge& edge, const Tensor& indices) {
  Tensor grad = Tensor::zeros(edge.sizes, edge.dtype, g.device());
  device_scatter_rows(g, rows_in("embedding_backward", indices, edge.sizes[0]), grad);
  return grad;
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  expect_floating("embedding", weight, "weight");
  expect_dim("embedding", weight, "weight", 2);
  const std::vector<std::int64_t> rows = rows_in("embedding", indices, weight.size(0));

  Shape sizes = indices.sizes();
  sizes.push_back(weight.size(1));
  Tensor out = Tensor::zeros(std::move(sizes), weight.dtype(), weight.device());
  if (!on_cpu(weight)) {
    device_gather_rows(weight, rows, out);
  } else {
    copy_rows(weight, rows, out);
  }
  return finish("embedding", op_math(weight.dtype()), std::move(out),
                {{"weight", &weight}, {"indices", &indices, ArgRole::kIndex}}, {},
                {{"indices", &indices, ArgRole::kIndex}}, [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  if (!on_cpu(g)) return {table_gradient_on_device(g, node.edges[0], node.saved[0].tensor)};
                  const auto used = read_indices("embedding_backward", node.saved[0].tensor, "indices");
                  return {node.dtype == DType::kF64 ? table_gradient<double>(g, node.edges[0], used)
                                                    : table_gradient<float>(g, node.edges[0], used)};
                });
}

}  // namespace nanhunt::engine
