// SPDX-License-Identifier: Apache-2.0
// Ops on a device: tensors as the calls of kernels/device_ops.h. Each does what its neighbour for the CPU does.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/portable/formulas.h"
#include "kernels/device_ops.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

inline bool on_cpu(const Tensor& tensor) { return tensor.device().is_cpu(); }

// Where an op with these operands runs. Undefined ones do not count, and a tensor of the CPU without dimensions goes
// anywhere, as a number. Throws where two devices meet otherwise.
Device common_device(std::string_view op, std::initializer_list<const Tensor*> operands);
// The same where none of them may be a number.
Device same_device(std::string_view op, std::initializer_list<const Tensor*> operands);
// For ops that no device has: throws "[op] expected tensors on cpu (...), got one on cuda:0".
void expect_cpu(std::string_view op, std::initializer_list<const Tensor*> operands);

template <typename F>
kernels::FormulaCall formula_call(const F& f) {
  using Formula = typename F::Formula;
  static_assert(std::is_trivially_copyable_v<Formula> && sizeof(Formula) <= sizeof(kernels::FormulaCall::scalars));
  kernels::FormulaCall call;
  call.number = kernels::cuda::formula_number<Formula>();
  if constexpr (!std::is_empty_v<Formula>) {
    const Formula& formula = f;
    std::memcpy(call.scalars, &formula, sizeof(Formula));
  }
  return call;
}

using Operands = std::span<const Tensor* const>;
// out = formula(inputs...), as map_into().
void device_map(const Tensor& out, DType common, const kernels::FormulaCall& formula, Operands inputs);
// As map_gradient() where it sums: a new tensor of `sizes` and `dtype`.
Tensor device_gradient_sum(const Shape& sizes, DType dtype, const Shape& shape, DType common,
                           const kernels::FormulaCall& formula, Operands inputs);
void* device_data(const Tensor& tensor);  // of the first element; an address of its device
// As copy_elements(); the source may lie on another device.
void device_copy(const Tensor& target, const Tensor& source);

// As sums, softmax and so on have it: the tensor's elements in rows of `length`.
void device_reduce(kernels::Reduction kind, const Tensor& view, std::int64_t length, const Tensor& out);
void device_softmax(const Tensor& self, const Tensor& out, bool log);  // over the last dimension
void device_softmax_gradient(const Tensor& g, const Tensor& result, const Tensor& out, bool log);
// In the arithmetic of mean's format.
void device_layer_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out,
                       const Tensor& mean, const Tensor& rstd);
struct AffineGradients {
  Tensor input, weight, bias;  // undefined: not wanted
};
void device_layer_norm_gradient(const Tensor& g, const Tensor& input, const Tensor& weight, const Tensor& mean,
                                const Tensor& rstd, const AffineGradients& out);
// As batch_norm.cpp has them, in the arithmetic of mean's format; new_mean and new_var are undefined where the
// statistics stay.
struct BatchNormTensors {
  const Tensor &input, &weight, &bias, &running_mean, &running_var;
  const Tensor &out, &mean, &invstd, &new_mean, &new_var;
};
void device_batch_norm(const BatchNormTensors& tensors, bool training, double momentum, double eps);
struct BatchNormSaved {
  const Tensor &input, &weight, &mean, &spread;
};
void device_batch_norm_gradient(const Tensor& g, const BatchNormSaved& saved, DType arithmetic, bool training,
                                double eps, const AffineGradients& out);
// `positions` of log_probs (without gaps) are those of the targets that count.
void device_picked_loss(const Tensor& log_probs, const std::vector<std::int64_t>& positions, const Tensor& out);
void device_picked_loss_gradient(const Tensor& g, const std::vector<std::int64_t>& positions, const Tensor& out);
void device_gather_rows(const Tensor& table, const std::vector<std::int64_t>& rows, const Tensor& out);
void device_scatter_rows(const Tensor& g, const std::vector<std::int64_t>& rows, const Tensor& out);
// Draws one word for each element from `random`.
void device_dropout_mask(const Tensor& mask, RandomStream& random, std::uint64_t dropped);
// All on one device. `found`: int32, one element.
void device_unscale(std::span<const Tensor> grads, float inv_scale, const Tensor& found);
// left @ right plus bias, as multiply().
Tensor device_multiply(std::string_view op, const Tensor& left, const Tensor& right, const Tensor& bias);

Tensor without_gaps(const Tensor& tensor);               // itself, or a copy
kernels::DeviceArray flat_array(const Tensor& tensor);  // without gaps; no data where it is undefined

}  // namespace nanhunt::engine
