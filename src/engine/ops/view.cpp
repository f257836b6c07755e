// SPDX-License-Identifier: Apache-2.0
// t, reshape (view), narrow, select share their input's storage; clone is the copy that reshape needs.
#include <fmt/format.h>

#include <optional>

#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

// `sizes` with a -1 replaced by what is left over.
Shape resolve(const Tensor& self, Shape sizes) {
  const std::string wanted = describe(sizes);
  const auto unknown = std::find(sizes.begin(), sizes.end(), -1);
  if (unknown != sizes.end()) {
    *unknown = 1;
    const std::int64_t known = numel_of(sizes);
    if (known == 0 || self.numel() % known != 0) {
      fail("view", fmt::format("a shape of {} elements", self.numel()), wanted);
    }
    *unknown = self.numel() / known;
  }
  if (numel_of(sizes) != self.numel()) fail("view", fmt::format("a shape of {} elements", self.numel()), wanted);
  return sizes;
}

// Strides under which the same elements have these sizes; nothing when that takes a copy. A dimension of the view must
// lie within dimensions of the tensor that can be walked as one.
std::optional<Shape> view_strides(const Tensor& tensor, const Shape& sizes) {
  if (tensor.is_contiguous()) return contiguous_strides(sizes);
  if (tensor.numel() == 0) return {};
  const Shape &old_sizes = tensor.sizes(), &old_strides = tensor.strides();
  Shape strides(sizes.size());
  std::size_t left = sizes.size();  // dimensions of the view that have no stride yet
  std::int64_t step = old_strides.back(), walked = 1, viewed = 1;
  for (std::size_t d = old_sizes.size(); d-- > 0;) {
    walked *= old_sizes[d];
    const bool ends = d == 0 || (old_sizes[d - 1] != 1 && old_strides[d - 1] != walked * step);
    if (!ends) continue;
    while (left > 0 && (viewed < walked || sizes[left - 1] == 1)) {
      strides[--left] = viewed * step;
      viewed *= sizes[left];
    }
    if (viewed != walked) return {};
    if (d > 0) step = old_strides[d - 1];
    walked = viewed = 1;
  }
  return strides;
}

Tensor viewed_as(const Tensor& tensor, const Shape& sizes) {
  std::optional<Shape> strides = view_strides(tensor, sizes);
  if (!strides) return viewed_as(tensor.clone(), sizes);
  return make_view(tensor, sizes, *std::move(strides), tensor.storage_offset());
}

// A gradient that is zero except in the part that `window` looks at.
Tensor embed(const Tensor& g, const Edge& edge, const Shape& strides, std::int64_t offset) {
  Tensor grad = Tensor::zeros(edge.sizes, edge.dtype, g.device());
  copy_elements(make_view(grad, g.sizes(), strides, offset), g);
  return grad;
}

Tensor without_dim(const Tensor& tensor, int dim, std::int64_t index) {
  Shape sizes = tensor.sizes(), strides = tensor.strides();
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return make_view(tensor, std::move(sizes), std::move(strides),
                   tensor.storage_offset() + index * tensor.strides()[static_cast<std::size_t>(dim)]);
}

}  // namespace

Tensor t(const Tensor& self) {
  expect_defined("t", self, "self");
  expect_dim("t", self, "self", 2);
  return finish("t", self.dtype(), dim_last(self, 0), {{"self", &self}}, {}, {},
                [](const Tensor& g, const Node&) -> std::vector<Tensor> { return {dim_last(g, 0)}; });
}

Tensor clone(const Tensor& self) {
  expect_defined("clone", self, "self");
  return finish("clone", self.dtype(), self.clone(), {{"self", &self}}, {}, {},
                [](const Tensor& g, const Node&) -> std::vector<Tensor> { return {g.clone()}; });
}

Tensor reshape(const Tensor& self, Shape sizes) {
  expect_defined("view", self, "self");
  sizes = resolve(self, std::move(sizes));
  const Tensor source = view_strides(self, sizes) ? self : clone(self);
  return finish("view", self.dtype(), viewed_as(source, sizes), {{"self", &source}}, {}, {},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {viewed_as(g, node.edges[0].sizes)};
                });
}

Tensor flatten(const Tensor& self, int start_dim) {
  expect_defined("flatten", self, "self");
  if (self.dim() == 0) return reshape(self, {1});
  const auto kept = self.sizes().begin() + wrap_dim("flatten", self, start_dim);
  Shape sizes(self.sizes().begin(), kept);
  sizes.push_back(numel_of(Shape(kept, self.sizes().end())));
  return reshape(self, std::move(sizes));
}

Tensor narrow(const Tensor& self, int dim, std::int64_t start, std::int64_t length) {
  expect_defined("narrow", self, "self");
  dim = wrap_dim("narrow", self, dim);
  const auto d = static_cast<std::size_t>(dim);
  if (start < 0 || length < 0 || start > self.size(dim) || length > self.size(dim) - start) {
    fail("narrow", fmt::format("a range within {}", self.size(dim)), fmt::format("start {}, length {}", start, length));
  }
  Shape sizes = self.sizes();
  sizes[d] = length;
  return finish("narrow", self.dtype(),
                make_view(self, std::move(sizes), self.strides(), self.storage_offset() + start * self.strides()[d]),
                {{"self", &self}},
                {{"dim", static_cast<double>(dim)},
                 {"start", static_cast<double>(start)},
                 {"length", static_cast<double>(length)}},
                {}, [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Shape strides = contiguous_strides(node.edges[0].sizes);
                  return {embed(g, node.edges[0], strides, start * strides[d])};
                });
}

Tensor select(const Tensor& self, int dim, std::int64_t index) {
  expect_defined("select", self, "self");
  dim = wrap_dim("select", self, dim);
  const std::int64_t size = self.size(dim);
  if (index < -size || index >= size) {
    fail("select", fmt::format("an index within {}", size), fmt::format("{}", index));
  }
  if (index < 0) index += size;
  return finish("select", self.dtype(), without_dim(self, dim, index), {{"self", &self}},
                {{"dim", static_cast<double>(dim)}, {"index", static_cast<double>(index)}}, {},
                [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  Shape strides = contiguous_strides(node.edges[0].sizes);
                  const std::int64_t offset = index * strides[static_cast<std::size_t>(dim)];
                  strides.erase(strides.begin() + dim);
                  return {embed(g, node.edges[0], strides, offset)};
                });
}

}  // namespace nanhunt::engine
