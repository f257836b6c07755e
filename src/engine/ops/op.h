// SPDX-License-Identifier: Apache-2.0
// What every op shares: checks with one form of message, promotion and broadcasting, and finish(), which
// tells observers about the op and hangs its backward on the output.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

// Throws std::invalid_argument "[op] expected ..., got ...".
[[noreturn]] void fail(std::string_view op, std::string_view expected, std::string_view got);
std::string describe(const Shape& sizes);    // "[2, 3]"
std::string describe(const Tensor& tensor);  // "fp16 [2, 3]"

std::int64_t numel_of(const Shape& sizes);  // throws on negative sizes and overflow
Shape contiguous_strides(const Shape& sizes);
Tensor make_view(const Tensor& base, Shape sizes, Shape strides, std::int64_t offset);  // no autograd, not observed
Tensor dim_last(const Tensor& tensor, int dim);  // view with `dim` moved to the end

DType op_math(DType dtype);  // fp64 for fp64, else fp32
// In which a norm computes: op math, or with statistics in the input's format that.
DType norm_arithmetic(DType input, NormStatistics statistics);
DType promote(const Tensor& a, const Tensor& b);
DType promote(DType a, DType b);
Shape broadcast(std::string_view op, const Shape& a, const Shape& b);

void expect_defined(std::string_view op, const Tensor& tensor, std::string_view slot);
// Defined, and one of the four floating formats the engine computes with.
void expect_floating(std::string_view op, const Tensor& tensor, std::string_view slot);
void expect_dtype(std::string_view op, const Tensor& tensor, std::string_view slot, DType dtype);
void expect_dim(std::string_view op, const Tensor& tensor, std::string_view slot, int dims);
int wrap_dim(std::string_view op, const Tensor& tensor, int dim);  // negative counts from the end

// An argument of a forward op. Arguments read with role kRead are the differentiable ones.
struct Arg {
  std::string_view slot;
  const Tensor* tensor;
  ArgRole role = ArgRole::kRead;
};
// Borrowed: lives as long as the list or vector it was made from.
class Args {
 public:
  Args() = default;
  Args(std::initializer_list<Arg> list) : args_(list.begin(), list.size()) {}
  explicit Args(const std::vector<Arg>& list) : args_(list) {}
  auto begin() const { return args_.begin(); }
  auto end() const { return args_.end(); }
  std::size_t size() const { return args_.size(); }

 private:
  std::span<const Arg> args_;
};
using Scalars = std::initializer_list<OpScalar>;

// An op without gradient: tells observers, returns `out`. `also` are further results, under their own slots
// ("mean", "indices"); no gradient flows through them. An input with role kOverwritten was bumped once.
Tensor finish(std::string_view op, DType compute, Tensor out, Args inputs, Scalars scalars = {}, Args also = {});
// An op that has just written `self` in place: bumps its version and tells observers. The old contents of self are an
// overwritten input; what else shares its storage was read as it was before.
Tensor& finish_in_place(std::string_view op, DType compute, Tensor& self, Args others, Scalars scalars = {});
bool wants_grad(Args inputs);
void attach_node(std::string_view op, DType compute, const Tensor& out, Args inputs, Scalars scalars, Args saved,
                 decltype(Node::backward) backward);

// A value that backward needs only if `input` wants a gradient; backward finds it undefined otherwise.
inline const Tensor* saved_for(const Tensor& input, const Tensor& value) {
  return input.requires_grad() ? &value : nullptr;
}

// A differentiable op. `saved` are the values its backward reads: role kRead means kSaved there, masks and
// indices keep theirs. All text must be literals.
template <typename F>
Tensor finish(std::string_view op, DType compute, Tensor out, Args inputs, Scalars scalars, Args saved, F&& backward,
              Args also = {}) {
  out = finish(op, compute, std::move(out), inputs, scalars, also);
  if (wants_grad(inputs)) attach_node(op, compute, out, inputs, scalars, saved, std::forward<F>(backward));
  return out;
}

}  // namespace nanhunt::engine
