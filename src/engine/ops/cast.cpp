// SPDX-License-Identifier: Apache-2.0
// to (_to_copy): conversion with one rounding; the gradient is converted back.
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

Tensor convert(const Tensor& self, DType dtype) {
  Tensor out = Tensor::empty(self.sizes(), dtype, self.device());
  copy_elements(out, self);
  return out;
}

}  // namespace

Tensor to(const Tensor& self, DType dtype) {
  expect_defined("_to_copy", self, "self");
  if (self.dtype() == dtype) return self;
  // A conversion reads exactly, and rounds only when it stores.
  const DType compute = op_math(self.dtype());
  if (!is_floating(dtype)) return finish("_to_copy", compute, convert(self, dtype), {{"self", &self}});
  return finish(
      "_to_copy", compute, convert(self, dtype), {{"self", &self}}, {}, {},
      [](const Tensor& g, const Node& node) -> std::vector<Tensor> { return {convert(g, node.edges[0].dtype)}; });
}

}  // namespace nanhunt::engine
