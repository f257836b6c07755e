// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/device/device_images.h"

#include <algorithm>

#include "src/engine/backend.h"
#include "src/engine/ops/device/device_calls.h"

namespace nanhunt::engine {
namespace {

using kernels::MatrixOperand;

bool is_wide(const Tensor& tensor) { return tensor.dtype() == DType::kF64; }

kernels::WindowSizes sizes_of(const Windows& w, std::int64_t images) {
  return {.images = images, .channels = w.channels, .height = w.height, .width = w.width,
          .kernel_height = w.kernel_height, .kernel_width = w.kernel_width, .stride = w.stride, .padding = w.padding,
          .out_height = w.out_height, .out_width = w.out_width};
}

// From element `first` on, of a tensor without gaps.
kernels::DeviceArray array_from(const Tensor& tensor, std::int64_t first) {
  kernels::DeviceArray array = flat_array(tensor);
  if (!tensor.defined()) return array;
  array.data = static_cast<std::byte*>(array.data) + first * static_cast<std::int64_t>(dtype_size(tensor.dtype()));
  return array;
}
void* data_from(const Tensor& tensor, std::int64_t first) { return array_from(tensor, first).data; }

// c = a @ b + beta * c in op math, a and b of `dtype`; c lies in its tensor from element `first` on.
struct Product {
  DType dtype;
  MatrixOperand a, b;
  double beta;
  std::int64_t m, n, k, first = 0;
};
void multiply_into(const Tensor& c, const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  kernels::DeviceBackend& backend = backend_of(c.device());
  if (p.k == 0) {
    const auto bytes = static_cast<std::size_t>(p.m * p.n) * dtype_size(c.dtype());
    if (p.beta == 0) backend.set_zero(data_from(c, p.first), bytes);
    return;
  }
  kernels::ProductCall call;
  call.dtype = p.dtype;
  call.m = p.m;
  call.n = p.n;
  call.k = p.k;
  call.a = p.a;
  call.b = p.b;
  call.beta = p.beta;
  call.wide_result = c.dtype() != p.dtype;
  call.c = data_from(c, p.first);
  backend.run(call);
}

// Columns of as many images at a time as the device has room for.
struct Columns {
  const Windows& w;
  Device device;
  DType dtype, compute;
  std::int64_t rows, plane, chunk;

  Columns(const Windows& windows, const Tensor& tensor)
      : w(windows),
        device(tensor.device()),
        dtype(tensor.dtype()),
        compute(op_math(dtype)),
        rows(w.channels * w.taps()),
        plane(w.out_plane()),
        chunk(images_at_a_time(w, dtype_size(compute), backend_of(device).column_bytes())) {}

  Tensor room(std::int64_t height, DType of) const { return Tensor::empty({height * chunk * plane}, of, device); }
  void unfold(const Tensor& images, std::int64_t first, std::int64_t count, const Tensor& columns) const {
    kernels::UnfoldCall call;
    call.bytes = static_cast<int>(dtype_size(dtype));
    call.windows = sizes_of(w, count);
    call.images = data_from(images, first * w.channels * w.plane());
    call.columns = data_from(columns, 0);
    if (rows != 0) backend_of(device).run(call);
  }
  // (images, channels, plane) to (channels, images * plane)
  void by_channel(const Tensor& images, std::int64_t channels, std::int64_t first, std::int64_t count,
                  const Tensor& out) const {
    kernels::CopyCall call;
    call.bytes = static_cast<int>(dtype_size(dtype));
    call.walk = {.count = channels * count * plane, .dims = 3, .sizes = {channels, count, plane}};
    call.from = array_from(images, first * channels * plane);
    call.to = flat_array(out);
    const std::int64_t from[] = {plane, channels * plane, 1}, to[] = {count * plane, plane, 1};
    std::copy_n(from, 3, call.from.strides);
    std::copy_n(to, 3, call.to.strides);
    if (call.walk.count != 0) backend_of(device).run(call);
  }
};

Tensor rounded_to(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const Tensor out = Tensor::empty(tensor.sizes(), dtype, tensor.device());
  device_copy(out, tensor);
  return out;
}

template <typename Call>
void run_over(const Windows& w, const Tensor& out, Call& call) {
  call.wide = is_wide(out);
  call.windows = sizes_of(w, w.images);
  call.out = flat_array(out);
  if (out.numel() != 0) backend_of(out.device()).run(call);
}

std::int64_t* index_data(const Tensor& indices) { return static_cast<std::int64_t*>(flat_array(indices).data); }

}  // namespace

Tensor device_convolution(const Windows& w, std::int64_t groups, const Tensor& input, const Tensor& weight,
                          const Tensor& bias) {
  const std::int64_t outs = weight.size(0);
  const Columns c(w, input);
  Tensor out = Tensor::empty({w.images, outs, w.out_height, w.out_width}, c.dtype, c.device);
  if (out.numel() == 0) return out;
  const Tensor x = without_gaps(input), filters = without_gaps(weight),
               offsets = bias.defined() ? without_gaps(bias) : bias;
  const Tensor columns = c.room(c.rows, c.dtype), products = c.room(outs, c.compute);
  for (std::int64_t first = 0; first < w.images; first += c.chunk) {
    const std::int64_t count = std::min(c.chunk, w.images - first), positions = count * c.plane;
    c.unfold(x, first, count, columns);
    const std::int64_t inner = c.rows / groups, share = outs / groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      multiply_into(products, {.dtype = c.dtype,
                               .a = {.data = data_from(filters, g * share * inner), .lead = inner},
                               .b = {.data = data_from(columns, g * inner * positions), .lead = positions},
                               .beta = 0, .m = share, .n = positions, .k = inner, .first = g * share * positions});
    }
    kernels::ChannelBiasCall call;
    call.wide = is_wide(out);
    call.images = count;
    call.channels = outs;
    call.plane = c.plane;
    call.products = flat_array(products);
    call.bias = flat_array(offsets);
    call.out = array_from(out, first * outs * c.plane);
    backend_of(c.device).run(call);
  }
  return out;
}

std::array<Tensor, 3> device_convolution_gradient(const Windows& w, std::int64_t groups, const Tensor& grad,
                                                  const Tensor& input, const Tensor& weight,
                                                  const ConvolutionWanted& wanted, const Shape& weight_sizes,
                                                  std::int64_t images_at_once) {
  const std::int64_t outs = grad.size(1);
  const Columns c(w, grad);
  const std::int64_t inner = c.rows / groups, share = outs / groups;  // of one group
  const Tensor g = without_gaps(grad);
  Tensor to_input, to_weight, to_bias, x, filters, columns, column_gradients;
  if (wanted.input) {
    to_input = Tensor::empty({w.images, w.channels, w.height, w.width}, c.dtype, c.device);
    filters = without_gaps(weight);
    column_gradients = c.room(c.rows, c.compute);
  }
  if (wanted.weight) {
    to_weight = Tensor::zeros(weight_sizes, c.compute, c.device);
    x = without_gaps(input);
    columns = c.room(c.rows, c.dtype);
  }
  if (wanted.bias) {
    to_bias = Tensor::empty({outs}, c.dtype, c.device);
    kernels::ChannelSumCall call;
    call.wide = is_wide(g);
    call.images = w.images;
    call.channels = outs;
    call.plane = c.plane;
    call.group = images_at_once;
    call.grad = flat_array(g);
    call.out = flat_array(to_bias);
    if (outs != 0) backend_of(c.device).run(call);
  }
  if (!wanted.weight && !wanted.input) return {to_input, to_weight, to_bias};
  const Tensor gradients = c.room(outs, c.dtype);
  for (std::int64_t first = 0; first < w.images; first += c.chunk) {
    const std::int64_t count = std::min(c.chunk, w.images - first), positions = count * c.plane;
    c.by_channel(g, outs, first, count, gradients);
    if (wanted.weight) c.unfold(x, first, count, columns);
    for (std::int64_t k = 0; k < groups; ++k) {
      const MatrixOperand by_channel{.data = data_from(gradients, k * share * positions), .lead = positions};
      const std::int64_t from = k * inner * positions, filter = k * share * inner;
      if (wanted.weight) {
        multiply_into(to_weight, {.dtype = c.dtype,
                                  .a = by_channel,
                                  .b = {.data = data_from(columns, from), .lead = positions, .transposed = true},
                                  .beta = 1, .m = share, .n = inner, .k = positions, .first = filter});
      }
      if (!wanted.input) continue;
      multiply_into(column_gradients, {.dtype = c.dtype,
                                       .a = {.data = data_from(filters, filter), .lead = inner, .transposed = true},
                                       .b = by_channel,
                                       .beta = 0, .m = inner, .n = positions, .k = share, .first = from});
    }
    if (wanted.input && c.rows != 0) {
      kernels::FoldCall call;
      call.wide = is_wide(g);
      call.windows = sizes_of(w, count);
      call.columns = flat_array(column_gradients);
      call.images = array_from(to_input, first * w.channels * w.plane());
      backend_of(c.device).run(call);
    }
  }
  return {to_input, wanted.weight ? rounded_to(to_weight, c.dtype) : to_weight, to_bias};
}

Tensor device_max_pool(const Windows& w, const Tensor& self, const Tensor& indices) {
  Tensor out = Tensor::empty({w.images, w.channels, w.out_height, w.out_width}, self.dtype(), self.device());
  const Tensor x = without_gaps(self);
  kernels::MaxPoolCall call;
  call.in = flat_array(x);
  call.indices = index_data(indices);
  run_over(w, out, call);
  return out;
}

Tensor device_max_pool_gradient(const Windows& w, const Tensor& grad, const Tensor& indices) {
  Tensor out = Tensor::empty({w.images, w.channels, w.height, w.width}, grad.dtype(), grad.device());
  const Tensor g = without_gaps(grad);
  kernels::MaxPoolGradientCall call;
  call.grad = flat_array(g);
  call.indices = index_data(indices);
  run_over(w, out, call);
  return out;
}

Tensor device_avg_pool(const Windows& w, const Tensor& self) {
  Tensor out = Tensor::empty({w.images, w.channels, w.out_height, w.out_width}, self.dtype(), self.device());
  const Tensor x = without_gaps(self);
  kernels::AvgPoolCall call;
  call.in = flat_array(x);
  run_over(w, out, call);
  return out;
}

Tensor device_avg_pool_gradient(const Windows& w, const Tensor& grad) {
  Tensor out = Tensor::empty({w.images, w.channels, w.height, w.width}, grad.dtype(), grad.device());
  const Tensor g = without_gaps(grad);
  kernels::AvgPoolGradientCall call;
  call.grad = flat_array(g);
  run_over(w, out, call);
  return out;
}

Tensor device_upsample(const Tensor& self, const Shape& sizes, std::int64_t scale) {
  Tensor out = Tensor::empty(sizes, self.dtype(), self.device());
  if (out.numel() == 0) return out;
  const Tensor x = without_gaps(self);
  const std::int64_t width = self.size(3), lines = self.numel() / width, across = width * scale;
  kernels::CopyCall call;
  call.bytes = static_cast<int>(dtype_size(self.dtype()));
  call.walk = {.count = out.numel(), .dims = 4, .sizes = {lines, scale, width, scale}};
  call.from = flat_array(x);
  call.to = flat_array(out);
  const std::int64_t from[] = {width, 0, 1, 0}, to[] = {scale * across, across, scale, 1};
  std::copy_n(from, 4, call.from.strides);
  std::copy_n(to, 4, call.to.strides);
  backend_of(out.device()).run(call);
  return out;
}

Tensor device_upsample_gradient(const Tensor& grad, const Shape& sizes, std::int64_t scale) {
  Tensor out = Tensor::empty(sizes, grad.dtype(), grad.device());
  const Tensor g = without_gaps(grad);
  kernels::UpsampleGradientCall call;
  call.wide = is_wide(out);
  call.count = out.numel();
  call.width = sizes[3];
  call.scale = scale;
  call.grad = flat_array(g);
  call.out = flat_array(out);
  if (call.count != 0) backend_of(out.device()).run(call);
  return out;
}

}  // namespace nanhunt::engine
