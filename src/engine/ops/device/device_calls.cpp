// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/device/device_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "src/engine/backend.h"
#include "src/engine/ops/loops/gemm.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {

void* device_data(const Tensor& tensor) {
  return tensor.storage()->data() + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
}

namespace {

using kernels::DeviceArray;
using kernels::Walk;

bool is_wide(DType dtype) { return dtype == DType::kF64; }

// A tensor over `shape`, to which it broadcasts: strides of every dimension, right-aligned, 0 where it repeats.
Shape strides_over(const Shape& shape, const Tensor& tensor) {
  Shape strides(shape.size(), 0);
  const std::size_t lead = shape.size() - tensor.sizes().size();
  for (std::size_t d = lead; d < shape.size(); ++d) {
    strides[d] = tensor.sizes()[d - lead] == 1 ? 0 : tensor.strides()[d - lead];
  }
  return strides;
}

DeviceArray array_of(const Tensor& tensor) {
  DeviceArray array;
  array.dtype = tensor.dtype();
  if (on_cpu(tensor)) {
    array.is_number = true;
    array.number = tensor.item();
  } else {
    array.data = device_data(tensor);
  }
  return array;
}

// Puts a shape and the arrays' strides over it into a walk, neighbouring dimensions merged where all of them allow it.
Walk make_walk(const Shape& shape, std::span<DeviceArray* const> arrays, std::span<const Shape> strides) {
  Walk walk;
  walk.count = numel_of(shape);
  walk.dims = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool merges = walk.dims > 0;
    for (std::size_t k = 0; k < arrays.size() && merges; ++k) {
      merges = arrays[k]->strides[walk.dims - 1] == strides[k][d] * shape[d];
    }
    if (!merges) {
      if (walk.dims == kernels::kMaxWalkDims) {
        fail("tensor", fmt::format("at most {} dimensions that cannot be merged on a device", kernels::kMaxWalkDims),
             describe(shape));
      }
      walk.sizes[walk.dims++] = 1;
    }
    walk.sizes[walk.dims - 1] *= shape[d];
    for (std::size_t k = 0; k < arrays.size(); ++k) arrays[k]->strides[walk.dims - 1] = strides[k][d];
  }
  if (walk.dims == 0) walk.sizes[walk.dims++] = 1;
  return walk;
}

// The same for tensors that have the shape or broadcast to it.
Walk walk_over(const Shape& shape, std::initializer_list<std::pair<DeviceArray*, const Tensor*>> tensors) {
  std::vector<DeviceArray*> arrays;
  std::vector<Shape> strides;
  for (const auto& [array, tensor] : tensors) {
    *array = array_of(*tensor);
    arrays.push_back(array);
    strides.push_back(strides_over(shape, *tensor));
  }
  return make_walk(shape, arrays, strides);
}

void expect_device_dtype(const Tensor& tensor) {
  if (tensor.dtype() != DType::kE4M3FN && tensor.dtype() != DType::kE5M2) return;
  fail("tensor", "a format that devices compute with (fp8 is for the CPU)", describe(tensor));
}

kernels::MapCall map_call(const Shape& shape, DType common, const kernels::FormulaCall& formula, Operands inputs,
                          const Tensor* out) {
  kernels::MapCall call;
  call.formula = formula;
  call.common = common;
  call.wide = is_wide(common);
  call.inputs = static_cast<int>(inputs.size());
  std::vector<DeviceArray*> arrays;
  std::vector<Shape> strides;
  const auto add = [&](DeviceArray& array, const Tensor& tensor) {
    expect_device_dtype(tensor);
    array = array_of(tensor);
    arrays.push_back(&array);
    strides.push_back(strides_over(shape, tensor));
  };
  if (out != nullptr) add(call.out, *out);
  for (std::size_t k = 0; k < inputs.size(); ++k) add(call.in[k], *inputs[k]);
  call.walk = make_walk(shape, arrays, strides);
  return call;
}

Device device_among(Operands inputs) {
  for (const Tensor* input : inputs) {
    if (!on_cpu(*input)) return input->device();
  }
  return {};
}

kernels::Rows rows_of(const Walk& walk, std::int64_t length) {
  return {.count = length == 0 ? 0 : walk.count / length, .length = length, .walk = walk};
}

// Lists of indices on a device, one after the other.
struct Indices {
  Tensor memory;  // keeps them alive
  const std::int64_t* at = nullptr;
};
Indices uploaded(const std::vector<std::int64_t>& values, const Device& device) {
  Indices out{Tensor::from_indices(values, {static_cast<std::int64_t>(values.size())}).on(device)};
  out.at = static_cast<const std::int64_t*>(device_data(out.memory));
  return out;
}

// Rows that are used, ascending; where each one's users begin in `order`, and where the last one's end.
struct Users {
  std::vector<std::int64_t> used, first{0}, order;
};
Users users_of(const std::vector<std::int64_t>& rows) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_row;  // users ascend
  for (std::size_t i = 0; i < rows.size(); ++i) by_row[rows[i]].push_back(static_cast<std::int64_t>(i));
  Users out;
  for (const auto& [row, at] : by_row) {
    out.used.push_back(row);
    out.order.insert(out.order.end(), at.begin(), at.end());
    out.first.push_back(static_cast<std::int64_t>(out.order.size()));
  }
  return out;
}

// Whether the tensor fills its part of memory once, in whatever order.
bool has_no_gaps(const Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;
  for (std::size_t d = 0; d < tensor.sizes().size(); ++d) {
    if (tensor.sizes()[d] != 1) dims.emplace_back(tensor.strides()[d], tensor.sizes()[d]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t next = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != next) return false;
    next *= size;
  }
  return true;
}

// As a matrix product takes it: rows or columns dense, else a copy that is.
struct StridedMatrix {
  Tensor tensor;  // keeps the memory alive
  kernels::MatrixOperand operand;
};

StridedMatrix load_matrix(const Tensor& tensor) {
  const auto stride = [](const Tensor& t, int from_end) {
    return t.strides()[t.strides().size() - static_cast<std::size_t>(from_end)];
  };
  const std::int64_t rows = tensor.size(-2), columns = tensor.size(-1);
  const bool by_columns = is_by_columns(tensor);
  const std::int64_t down = stride(tensor, 2), across = stride(tensor, 1);
  const bool strided = by_columns ? across >= std::max<std::int64_t>(rows, 1)
                                  : (across == 1 || columns == 1) && down >= std::max<std::int64_t>(columns, 1);
  if (!strided) return load_matrix(tensor.clone());
  return {tensor,
          {.data = device_data(tensor),
           .lead = by_columns ? across : down,
           .step = tensor.dim() == 3 ? stride(tensor, 3) : 0,
           .transposed = by_columns}};
}

}  // namespace

Device common_device(std::string_view op, std::initializer_list<const Tensor*> operands) {
  const Tensor* first = nullptr;
  for (const Tensor* operand : operands) {
    if (operand == nullptr || !operand->defined() || on_cpu(*operand)) continue;
    if (first == nullptr) first = operand;
    if (operand->device() != first->device()) {
      fail(op, "tensors on one device",
           fmt::format("one on {} and one on {}", describe(first->device()), describe(operand->device())));
    }
  }
  if (first == nullptr) return {};
  for (const Tensor* operand : operands) {
    if (operand == nullptr || !operand->defined() || !on_cpu(*operand) || operand->dim() == 0) continue;
    fail(op, "tensors on one device (only one without dimensions may stay on the CPU)",
         fmt::format("one on {} and {} on cpu", describe(first->device()), describe(*operand)));
  }
  return first->device();
}

Device same_device(std::string_view op, std::initializer_list<const Tensor*> operands) {
  const Tensor* first = nullptr;
  for (const Tensor* operand : operands) {
    if (operand == nullptr || !operand->defined()) continue;
    if (first == nullptr) first = operand;
    if (operand->device() != first->device()) {
      fail(op, "tensors on one device",
           fmt::format("one on {} and one on {}", describe(first->device()), describe(operand->device())));
    }
  }
  return first == nullptr ? Device{} : first->device();
}

void expect_cpu(std::string_view op, std::initializer_list<const Tensor*> operands) {
  for (const Tensor* operand : operands) {
    if (operand == nullptr || !operand->defined() || on_cpu(*operand)) continue;
    fail(op, "tensors on cpu (this op has no kernel for another device)", "one on " + describe(operand->device()));
  }
}

Tensor without_gaps(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : tensor.clone(); }

kernels::DeviceArray flat_array(const Tensor& tensor) {
  DeviceArray array;
  if (!tensor.defined()) return array;
  array.dtype = tensor.dtype();
  array.data = device_data(tensor);
  return array;
}

void device_map(const Tensor& out, DType common, const kernels::FormulaCall& formula, Operands inputs) {
  if (out.numel() == 0) return;
  backend_of(out.device()).run(map_call(out.sizes(), common, formula, inputs, &out));
}

Tensor device_gradient_sum(const Shape& sizes, DType dtype, const Shape& shape, DType common,
                           const kernels::FormulaCall& formula, Operands inputs) {
  const Device device = device_among(inputs);
  Tensor out = Tensor::empty(sizes, dtype, device);
  kernels::GradientSumCall call;
  call.map = map_call(shape, common, formula, inputs, nullptr);
  call.via = common;
  call.results = out.numel();
  call.out = flat_array(out);
  DeviceArray alone;
  DeviceArray* const arrays[] = {&alone};
  // Strides of the result over the shape, as if it had no gaps.
  const Shape strides[] = {strides_over(shape, make_view(out, sizes, contiguous_strides(sizes), 0))};
  const Walk walk = make_walk(shape, arrays, strides);
  call.dims = walk.dims;
  std::copy_n(walk.sizes, walk.dims, call.sizes);
  std::copy_n(alone.strides, walk.dims, call.to);
  // A walk of one position has a dimension of its own; it is no repetition.
  if (numel_of(shape) == 1) call.to[0] = 1;
  if (call.results != 0) backend_of(device).run(call);
  return out;
}

void device_copy(const Tensor& target, const Tensor& source) {
  const Device device = target.device();
  const bool number = on_cpu(source) && source.numel() == 1 && !on_cpu(target);
  const Tensor from = number ? source : source.on(device);
  if (on_cpu(target)) {
    copy_elements(target, from);
    return;
  }
  if (target.numel() == 0) return;
  if (number || from.dtype() != target.dtype()) {
    const bool wide = !is_floating(from.dtype()) || is_wide(from.dtype()) || is_wide(target.dtype()) ||
                      !is_floating(target.dtype()) || number;
    const Tensor one = number && from.dim() != 0 ? make_view(from, {}, {}, from.storage_offset()) : from;
    const Tensor* const inputs[] = {&one};
    kernels::MapCall call =
        map_call(target.sizes(), one.dtype(), formula_call(kernels::cuda::Identity{}), inputs, &target);
    call.wide = wide;
    backend_of(device).run(call);
    return;
  }
  if (target.is_contiguous() && from.is_contiguous() && from.sizes() == target.sizes()) {
    backend_of(device).on_device(device_data(target), device_data(from),
                                 static_cast<std::size_t>(target.numel()) * dtype_size(target.dtype()));
    return;
  }
  kernels::CopyCall call;
  call.bytes = static_cast<int>(dtype_size(target.dtype()));
  call.walk = walk_over(target.sizes(), {{&call.to, &target}, {&call.from, &from}});
  backend_of(device).run(call);
}

void device_reduce(kernels::Reduction kind, const Tensor& view, std::int64_t length, const Tensor& out) {
  kernels::ReduceCall call;
  call.kind = kind;
  call.wide = is_wide(view.dtype());
  call.rows = rows_of(walk_over(view.sizes(), {{&call.in, &view}}), length);
  call.rows.count = out.numel();  // rows of nothing too
  call.out = flat_array(out);
  if (out.numel() != 0) backend_of(out.device()).run(call);
}

void device_softmax(const Tensor& self, const Tensor& out, bool log) {
  kernels::SoftmaxCall call;
  call.kind = log ? kernels::SoftmaxKind::kLogSoftmax : kernels::SoftmaxKind::kSoftmax;
  call.wide = is_wide(self.dtype());
  call.rows = rows_of(walk_over(self.sizes(), {{&call.in, &self}, {&call.out, &out}}), self.sizes().back());
  backend_of(out.device()).run(call);
}

void device_softmax_gradient(const Tensor& g, const Tensor& result, const Tensor& out, bool log) {
  kernels::SoftmaxGradientCall call;
  call.kind = log ? kernels::SoftmaxKind::kLogSoftmax : kernels::SoftmaxKind::kSoftmax;
  call.wide = is_wide(out.dtype());
  call.rows = rows_of(walk_over(g.sizes(), {{&call.grad, &g}, {&call.result, &result}, {&call.out, &out}}),
                      g.sizes().back());
  backend_of(out.device()).run(call);
}

void device_layer_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out,
                       const Tensor& mean, const Tensor& rstd) {
  kernels::LayerNormCall call;
  call.arithmetic = mean.dtype();
  call.eps = eps;
  call.rows = rows_of(walk_over(input.sizes(), {{&call.in, &input}}), input.size(-1));
  const Tensor w = weight.defined() ? without_gaps(weight) : weight, b = bias.defined() ? without_gaps(bias) : bias;
  call.weight = flat_array(w);
  call.bias = flat_array(b);
  call.out = flat_array(out);
  call.mean = flat_array(mean);
  call.rstd = flat_array(rstd);
  if (input.numel() != 0) backend_of(input.device()).run(call);
}

void device_layer_norm_gradient(const Tensor& g, const Tensor& input, const Tensor& weight, const Tensor& mean,
                                const Tensor& rstd, const AffineGradients& out) {
  kernels::LayerNormGradientCall call;
  call.arithmetic = mean.dtype();
  call.rows = rows_of(walk_over(g.sizes(), {{&call.grad, &g}, {&call.in, &input}}), g.size(-1));
  const Tensor w = weight.defined() ? without_gaps(weight) : weight;
  call.weight = flat_array(w);
  call.mean = flat_array(mean);
  call.rstd = flat_array(rstd);
  call.grad_in = flat_array(out.input);
  call.grad_weight = flat_array(out.weight);
  call.grad_bias = flat_array(out.bias);
  backend_of(g.device()).run(call);
}

namespace {

// A row is a channel: all images of one, (image, plane) in order.
Tensor channels_first(const Tensor& tensor) {
  Shape sizes = tensor.sizes(), strides = tensor.strides();
  std::swap(sizes[0], sizes[1]);
  std::swap(strides[0], strides[1]);
  return make_view(tensor, sizes, strides, tensor.storage_offset());
}

kernels::Rows channel_rows(const Tensor& input, const Walk& walk) {
  kernels::Rows rows = rows_of(walk, input.size(1) == 0 ? 0 : input.numel() / input.size(1));
  rows.count = input.size(1);  // channels of nothing too
  return rows;
}

}  // namespace

void device_batch_norm(const BatchNormTensors& t, bool training, double momentum, double eps) {
  const Tensor input = channels_first(t.input), out = channels_first(t.out);
  const Tensor w = without_gaps(t.weight), b = without_gaps(t.bias);
  const Tensor mean = without_gaps(t.running_mean), var = without_gaps(t.running_var);
  kernels::BatchNormCall call;
  call.arithmetic = t.mean.dtype();
  call.training = training;
  call.momentum = momentum;
  call.eps = eps;
  call.rows = channel_rows(t.input, walk_over(input.sizes(), {{&call.in, &input}, {&call.out, &out}}));
  call.weight = flat_array(w);
  call.bias = flat_array(b);
  call.running_mean = flat_array(mean);
  call.running_var = flat_array(var);
  call.mean = flat_array(t.mean);
  call.invstd = flat_array(t.invstd);
  call.new_mean = flat_array(t.new_mean);
  call.new_var = flat_array(t.new_var);
  if (call.rows.count != 0) backend_of(t.input.device()).run(call);
}

void device_batch_norm_gradient(const Tensor& g, const BatchNormSaved& saved, DType arithmetic, bool training,
                                double eps, const AffineGradients& out) {
  const Tensor grad = channels_first(g), input = channels_first(saved.input);
  const Tensor w = without_gaps(saved.weight), mean = without_gaps(saved.mean), spread = without_gaps(saved.spread);
  kernels::BatchNormGradientCall call;
  call.arithmetic = arithmetic;
  call.training = training;
  call.eps = eps;
  if (out.input.defined()) {
    const Tensor to = channels_first(out.input);
    call.rows = channel_rows(
        g, walk_over(grad.sizes(), {{&call.grad, &grad}, {&call.in, &input}, {&call.grad_in, &to}}));
  } else {
    call.rows = channel_rows(g, walk_over(grad.sizes(), {{&call.grad, &grad}, {&call.in, &input}}));
  }
  call.weight = flat_array(w);
  call.mean = flat_array(mean);
  call.spread = flat_array(spread);
  call.grad_weight = flat_array(out.weight);
  call.grad_bias = flat_array(out.bias);
  if (call.rows.count != 0) backend_of(g.device()).run(call);
}

void device_picked_loss(const Tensor& log_probs, const std::vector<std::int64_t>& positions, const Tensor& out) {
  const Indices list = uploaded(positions, out.device());
  const Tensor in = without_gaps(log_probs);
  kernels::PickedLossCall call;
  call.wide = is_wide(in.dtype());
  call.count = static_cast<std::int64_t>(positions.size());
  call.at = list.at;
  call.in = flat_array(in);
  call.out = flat_array(out);
  backend_of(out.device()).run(call);
}

void device_picked_loss_gradient(const Tensor& g, const std::vector<std::int64_t>& positions, const Tensor& out) {
  const Indices list = uploaded(positions, out.device());
  kernels::PickedLossGradientCall call;
  call.wide = is_wide(g.dtype());
  call.count = static_cast<std::int64_t>(positions.size());
  call.at = list.at;
  call.grad = flat_array(g);
  call.out = flat_array(out);
  if (call.count != 0) backend_of(out.device()).run(call);
}

void device_gather_rows(const Tensor& table, const std::vector<std::int64_t>& rows, const Tensor& out) {
  const Indices list = uploaded(rows, out.device());
  const Tensor from = without_gaps(table);
  kernels::GatherRowsCall call;
  call.bytes = static_cast<int>(dtype_size(table.dtype()));
  call.count = static_cast<std::int64_t>(rows.size());
  call.width = table.size(1);
  call.rows = list.at;
  call.table = flat_array(from);
  call.out = flat_array(out);
  if (out.numel() != 0) backend_of(out.device()).run(call);
}

void device_scatter_rows(const Tensor& g, const std::vector<std::int64_t>& rows, const Tensor& out) {
  const Tensor grad = without_gaps(g);
  kernels::ScatterRowsCall call;
  call.wide = is_wide(g.dtype());
  call.width = out.size(1);
  call.grad = flat_array(grad);
  call.out = flat_array(out);
  const Users users = users_of(rows);
  const Indices used = uploaded(users.used, out.device());
  const Indices first = uploaded(users.first, out.device());
  const Indices order = uploaded(users.order, out.device());
  call.used_rows = static_cast<std::int64_t>(users.used.size());
  call.used = used.at;
  call.first = first.at;
  call.order = order.at;
  if (call.used_rows != 0 && call.width != 0) backend_of(out.device()).run(call);
}

void device_dropout_mask(const Tensor& mask, RandomStream& random, std::uint64_t dropped) {
  const auto words = static_cast<std::uint64_t>(mask.numel());
  kernels::DropoutMaskCall call;
  call.count = mask.numel();
  call.seed = random.seed();
  call.stream = random.stream();
  call.dropped = dropped;
  call.out = static_cast<std::uint8_t*>(device_data(mask));
  call.position = random.position();
  random.skip(words);
  if (call.count != 0) backend_of(mask.device()).run(call);
}

void device_unscale(std::span<const Tensor> grads, float inv_scale, const Tensor& found) {
  const auto flag = static_cast<std::int32_t*>(device_data(found));
  std::vector<kernels::UnscaledTensor> dense;
  for (const Tensor& grad : grads) {
    expect_device_dtype(grad);
    if (grad.numel() == 0) continue;
    if (has_no_gaps(grad)) {
      dense.push_back({device_data(grad), grad.numel(), grad.dtype()});
      continue;
    }
    kernels::UnscaleCall call;
    call.wide = is_wide(grad.dtype());
    call.inv_scale = inv_scale;
    call.walk = walk_over(grad.sizes(), {{&call.grad, &grad}});
    call.found = flag;
    backend_of(grad.device()).run(call);
  }
  if (dense.empty()) return;
  backend_of(found.device())
      .run(kernels::UnscaleManyCall{inv_scale, static_cast<std::int64_t>(dense.size()), dense.data(), flag});
}

Tensor device_multiply(std::string_view op, const Tensor& left, const Tensor& right, const Tensor& bias) {
  const Device device = common_device(op, {&left, &right, &bias});
  if (on_cpu(left) || on_cpu(right)) fail(op, "matrices on one device", "one on cpu and one on " + describe(device));
  Shape sizes = left.sizes();
  sizes.back() = right.size(-1);
  Tensor out = Tensor::empty(sizes, left.dtype(), device);
  const bool adds = bias.defined();
  if (adds) device_copy(out, bias);
  if (out.numel() == 0) return out;
  if (left.size(-1) == 0) {
    if (!adds) backend_of(device).set_zero(device_data(out), out.storage()->bytes());
    return out;
  }
  const StridedMatrix a = load_matrix(left), b = load_matrix(right);
  kernels::ProductCall call;
  call.dtype = left.dtype();
  call.m = left.size(-2);
  call.n = right.size(-1);
  call.k = left.size(-1);
  call.batch = left.dim() == 3 ? left.size(0) : 1;
  call.a = a.operand;
  call.b = b.operand;
  call.beta = adds ? 1 : 0;
  call.c = device_data(out);
  backend_of(device).run(call);
  return out;
}

}  // namespace nanhunt::engine
