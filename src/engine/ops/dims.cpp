// SPDX-License-Identifier: Apache-2.0
// transpose, permute and expand: views of the same elements with other dimensions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "nanhunt/engine/ops.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

// Dimension d of the result is dimension order[d] of the tensor.
Tensor permuted(const Tensor& tensor, const std::vector<int>& order) {
  Shape sizes, strides;
  for (int d : order) {
    sizes.push_back(tensor.sizes()[static_cast<std::size_t>(d)]);
    strides.push_back(tensor.strides()[static_cast<std::size_t>(d)]);
  }
  return make_view(tensor, std::move(sizes), std::move(strides), tensor.storage_offset());
}

std::vector<int> in_order(const Tensor& tensor) {
  std::vector<int> order(tensor.sizes().size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

Tensor transpose(const Tensor& self, int dim0, int dim1) {
  expect_defined("transpose", self, "self");
  dim0 = wrap_dim("transpose", self, dim0);
  dim1 = wrap_dim("transpose", self, dim1);
  std::vector<int> order = in_order(self);
  std::swap(order[static_cast<std::size_t>(dim0)], order[static_cast<std::size_t>(dim1)]);
  return finish("transpose", self.dtype(), permuted(self, order), {{"self", &self}},
                {{"dim0", static_cast<double>(dim0)}, {"dim1", static_cast<double>(dim1)}}, {},
                [order](const Tensor& g, const Node&) -> std::vector<Tensor> {
                  return {permuted(g, order)};
                });  // its own inverse
}

Tensor permute(const Tensor& self, std::vector<int> dims) {
  expect_defined("permute", self, "self");
  const std::string given = fmt::format("[{}]", fmt::join(dims, ", "));
  for (int& d : dims) d = wrap_dim("permute", self, d);
  std::vector<int> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != in_order(self)) fail("permute", "each dimension of " + describe(self.sizes()) + " once", given);
  std::vector<int> inverse(dims.size());
  for (std::size_t d = 0; d < dims.size(); ++d) inverse[static_cast<std::size_t>(dims[d])] = static_cast<int>(d);
  return finish(
      "permute", self.dtype(), permuted(self, dims), {{"self", &self}}, {}, {},
      [inverse](const Tensor& g, const Node&) -> std::vector<Tensor> { return {permuted(g, inverse)}; });
}

Tensor expand(const Tensor& self, Shape sizes) {
  expect_defined("expand", self, "self");
  if (broadcast("expand", self.sizes(), sizes) != sizes) {
    fail("expand", "sizes to which " + describe(self) + " broadcasts", describe(sizes));
  }
  Shape strides(sizes.size(), 0);
  const std::size_t lead = sizes.size() - self.sizes().size();
  for (std::size_t d = lead; d < sizes.size(); ++d) {
    if (self.sizes()[d - lead] == sizes[d]) strides[d] = self.strides()[d - lead];
  }
  const Tensor out = make_view(self, std::move(sizes), std::move(strides), self.storage_offset());
  return finish("expand", self.dtype(), out, {{"self", &self}}, {}, {},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g)};
                });
}

}  // namespace nanhunt::engine
