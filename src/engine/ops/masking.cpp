// SPDX-License-Identifier: Apache-2.0
// where, masked_fill, and the comparisons that make masks. A gradient is 0 where the value was not taken.
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

// The scalar is rounded to the tensor's dtype first, as eager frameworks compare: fp16(0.1) equals 0.1.
double compared(const Tensor& self, double other) {
  return round_to(is_floating(self.dtype()) ? self.dtype() : DType::kF64, other);
}

template <typename F>
Tensor compare(std::string_view op, const Tensor& self, double other, F f) {
  const DType common = is_floating(self.dtype()) ? self.dtype() : DType::kF64;
  Tensor out = Tensor::zeros(self.sizes(), DType::kBool, self.device());
  map_into(out, common, f, self);
  return finish(op, op_math(common), std::move(out), {{"self", &self}}, {{"other", other}});
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  expect_dtype("where", condition, "condition", DType::kBool);
  expect_floating("where", self, "self");
  expect_floating("where", other, "other");
  const DType dtype = promote(self, other);
  const Shape shape = broadcast("where", condition.sizes(), broadcast("where", self.sizes(), other.sizes()));
  return finish("where", op_math(dtype), map(shape, dtype, formulas::Where{}, condition, self, other),
                {{"condition", &condition, ArgRole::kMask}, {"self", &self}, {"other", &other}}, {},
                {{"condition", &condition, ArgRole::kMask}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor& c = node.saved[0].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::WhereTaken{}, g, c),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::WhereNotTaken{}, g, c)};
                });
}

Tensor masked_fill(const Tensor& self, const Tensor& mask, double value) {
  expect_floating("masked_fill", self, "self");
  expect_dtype("masked_fill", mask, "mask", DType::kBool);
  const Shape shape = broadcast("masked_fill", self.sizes(), mask.sizes());
  return finish("masked_fill", op_math(self.dtype()),
                map(shape, self.dtype(), formulas::MaskedFill{value}, self, mask),
                {{"self", &self}, {"mask", &mask, ArgRole::kMask}}, {{"value", value}},
                {{"mask", &mask, ArgRole::kMask}}, [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::WhereNotTaken{}, g,
                                       node.saved[0].tensor)};
                });
}

Tensor eq(const Tensor& self, double other) {
  expect_defined("eq", self, "self");
  return compare("eq", self, other, formulas::Equal{compared(self, other)});
}
Tensor gt(const Tensor& self, double other) {
  expect_defined("gt", self, "self");
  return compare("gt", self, other, formulas::Greater{compared(self, other)});
}

}  // namespace nanhunt::engine
