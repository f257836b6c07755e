// SPDX-License-Identifier: Apache-2.0
// In-place ops, for optimizers and running statistics: no gradient, one version bump, and the old contents
// of self reported as an overwritten input.
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

void check_target(std::string_view op, const Tensor& self, Args others) {
  expect_defined(op, self, "self");
  bool tracked = self.requires_grad();
  for (const Arg& other : others) {
    expect_defined(op, *other.tensor, other.slot);
    tracked = tracked || other.tensor->requires_grad();
    if (broadcast(op, self.sizes(), other.tensor->sizes()) != self.sizes()) {
      fail(op, std::string(other.slot) + " that broadcasts to " + describe(self.sizes()), describe(*other.tensor));
    }
  }
  if (tracked && grad_enabled()) {
    fail(op, "tensors without gradient (in-place ops have none: use NoGradGuard, or detach() the operands)",
         "one with requires_grad");
  }
}

// An operand that overlaps self other than element by element is read from a copy.
Tensor apart(const Tensor& operand, const Tensor& self) {
  const bool shares = operand.storage() == self.storage();
  const bool aligned = shares && operand.storage_offset() == self.storage_offset() && operand.sizes() == self.sizes() &&
                       operand.strides() == self.strides();
  return shares && !aligned ? operand.clone() : operand;
}

template <typename Write>
Tensor& write_in_place(std::string_view op, DType compute, Tensor& self, Args others, Scalars scalars, Write write) {
  write();
  return finish_in_place(op, compute, self, others, scalars);
}

// self = f(self, others...), in the op math of what self and the others promote to.
template <typename F>
Tensor& update(std::string_view op, Tensor& self, Scalars scalars, F f) {
  check_target(op, self, {});
  expect_floating(op, self, "self");
  return write_in_place(op, op_math(self.dtype()), self, {}, scalars, [&] { map_into(self, self.dtype(), f, self); });
}

template <typename F>
Tensor& update(std::string_view op, Tensor& self, Arg other, Scalars scalars, F f) {
  check_target(op, self, {other});
  expect_floating(op, self, "self");
  const DType common = promote(self, *other.tensor);
  return write_in_place(op, op_math(common), self, {other}, scalars,
                        [&] { map_into(self, common, f, self, apart(*other.tensor, self)); });
}

template <typename F>
Tensor& update(std::string_view op, Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalars scalars, F f) {
  check_target(op, self, {{"tensor1", &tensor1}, {"tensor2", &tensor2}});
  expect_floating(op, self, "self");
  if (tensor1.dtype() != self.dtype() || tensor2.dtype() != self.dtype()) {
    fail(op, "operands of one dtype", describe(self) + ", " + describe(tensor1) + " and " + describe(tensor2));
  }
  return write_in_place(op, op_math(self.dtype()), self, {{"tensor1", &tensor1}, {"tensor2", &tensor2}}, scalars,
                        [&] { map_into(self, self.dtype(), f, self, apart(tensor1, self), apart(tensor2, self)); });
}

}  // namespace

Tensor& fill_(Tensor& self, double value) {
  check_target("fill_", self, {});
  return write_in_place("fill_", op_math(self.dtype()), self, {}, {{"value", value}},
                        [&] { copy_elements(self, Tensor::full({}, value, self.dtype())); });
}

Tensor& copy_(Tensor& self, const Tensor& source) {
  check_target("copy_", self, {{"src", &source}});
  return write_in_place("copy_", op_math(source.dtype()), self, {{"src", &source}}, {},
                        [&] { copy_elements(self, source); });
}

Tensor& add_(Tensor& self, const Tensor& other, double alpha) {
  if (alpha == 1) return update("add_", self, {"other", &other}, {{"alpha", alpha}}, formulas::Add{});
  return update("add_", self, {"other", &other}, {{"alpha", alpha}}, formulas::AddScaled{alpha});
}

Tensor& add_(Tensor& self, double other) {
  return update("add_", self, {{"other", other}}, formulas::AddNumber{other});
}

Tensor& mul_(Tensor& self, const Tensor& other) {
  return update("mul_", self, {"other", &other}, {}, formulas::Multiply{});
}

Tensor& mul_(Tensor& self, double other) {
  return update("mul_", self, {{"other", other}}, formulas::MultiplyNumber{other});
}

Tensor& lerp_(Tensor& self, const Tensor& end, double weight) {
  return update("lerp_", self, {"end", &end}, {{"weight", weight}}, formulas::Lerp{weight});
}

Tensor& addcmul_(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value) {
  return update("addcmul_", self, tensor1, tensor2, {{"value", value}}, formulas::AddProduct{value});
}

Tensor& addcdiv_(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value) {
  return update("addcdiv_", self, tensor1, tensor2, {{"value", value}}, formulas::AddQuotient{value});
}

}  // namespace nanhunt::engine
