// SPDX-License-Identifier: Apache-2.0
// max_pool2d (max_pool2d_with_indices), avg_pool2d, upsample_nearest2d. Sums run in op math, in a fixed order.
#include <bit>
#include <limits>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/dense.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/device/device_images.h"
#include "src/engine/ops/images/windows.h"

namespace nanhunt::engine {
namespace {

Windows pooling(std::string_view op, const Tensor& self, std::int64_t kernel, std::int64_t stride,
                std::int64_t padding) {
  Windows w = make_windows(op, self, "self", kernel, kernel, stride == 0 ? kernel : stride, padding);
  // A window that sees only padding has no largest element.
  if (padding > kernel / 2) fail(op, "a padding of at most half the window", std::to_string(padding));
  return w;
}

Shape out_sizes(const Windows& w) { return {w.images, w.channels, w.out_height, w.out_width}; }
Shape in_sizes(const Windows& w) { return {w.images, w.channels, w.height, w.width}; }

// Calls fn(input position, output position) for all planes, place after place of the window: for each output, row by
// row.
template <typename F>
void for_windows(const Windows& w, F fn) {
  for (std::int64_t place = 0; place < w.taps(); ++place) {
    const Tap tap(w, place);
    for (std::int64_t p = 0; p < w.images * w.channels; ++p) {
      const std::int64_t first_in = p * w.plane(), first_out = p * w.out_plane();
      tap.for_seen([&](std::int64_t in, std::int64_t out) { fn(first_in + in, first_out + out); });
    }
  }
}

// The first of the largest elements wins; a NaN is larger than everything, the last NaN wins. As in eager.
template <typename T>
Tensor max_forward(const Windows& w, const Tensor& self, Tensor& indices) {
  const DenseInput<T> x(self);
  DenseOutput<T> out(out_sizes(w), self.dtype());
  using Bits = BitsOf<T>;
  const std::int64_t planes = w.images * w.channels;
  const T* values = x.data();
  T* largest = out.data();
  auto* chosen = indices.data<std::int64_t>();  // position of the whole tensor, until the end
  std::fill_n(largest, planes * w.out_plane(), -std::numeric_limits<T>::infinity());
  std::fill_n(chosen, planes * w.out_plane(), -1);
  for_windows(w, [&](std::int64_t in, std::int64_t at) {
    const T value = values[in];
    // By bits: a branch on data like this is guessed wrong too often.
    const auto larger = -static_cast<std::int64_t>((value > largest[at]) | (value != value) | (chosen[at] < 0));
    const auto bits = static_cast<Bits>(larger);
    largest[at] = std::bit_cast<T>((std::bit_cast<Bits>(value) & bits) | (std::bit_cast<Bits>(largest[at]) & ~bits));
    chosen[at] = (in & larger) | (chosen[at] & ~larger);
  });
  for (std::int64_t p = 0; p < planes; ++p) {
    for (std::int64_t at = p * w.out_plane(); at < (p + 1) * w.out_plane(); ++at) chosen[at] -= p * w.plane();
  }
  return out.finish();
}

template <typename T>
Tensor max_backward(const Windows& w, const Tensor& grad, const Tensor& indices) {
  const DenseInput<T> g(grad);
  DenseOutput<T> out(in_sizes(w), grad.dtype());
  std::fill_n(out.data(), w.images * w.channels * w.plane(), T{0});
  const auto* chosen = indices.data<std::int64_t>();
  for (std::int64_t p = 0; p < w.images * w.channels; ++p) {
    T* plane = out.data() + p * w.plane();
    for (std::int64_t i = p * w.out_plane(); i < (p + 1) * w.out_plane(); ++i) plane[chosen[i]] += g.data()[i];
  }
  return out.finish();
}

// Padding counts as zeros: every window is divided by its full size.
template <typename T>
Tensor avg_forward(const Windows& w, const Tensor& self) {
  const DenseInput<T> x(self);
  DenseOutput<T> out(out_sizes(w), self.dtype());
  const std::int64_t count = w.images * w.channels * w.out_plane();
  const T size = static_cast<T>(w.taps());
  const T* values = x.data();
  T* sums = out.data();
  std::fill_n(sums, count, T{0});
  for_windows(w, [&](std::int64_t in, std::int64_t at) { sums[at] += values[in]; });
  for (std::int64_t at = 0; at < count; ++at) sums[at] /= size;
  return out.finish();
}

template <typename T>
Tensor avg_backward(const Windows& w, const Tensor& grad) {
  const DenseInput<T> g(grad);
  DenseOutput<T> out(in_sizes(w), grad.dtype());
  const T size = static_cast<T>(w.taps());
  const T* from = g.data();
  T* sums = out.data();
  std::fill_n(sums, w.images * w.channels * w.plane(), T{0});
  for_windows(w, [&](std::int64_t in, std::int64_t at) { sums[in] += from[at] / size; });
  return out.finish();
}

template <typename T>
Tensor upsample_forward(const Tensor& self, const Shape& sizes, std::int64_t scale) {
  const DenseInput<T> x(self);
  DenseOutput<T> out(sizes, self.dtype());
  const std::int64_t width = self.size(3);
  const T* line = x.data();
  T* to = out.data();
  for (std::int64_t h = 0; h < self.size(0) * self.size(1) * self.size(2); ++h, line += width) {
    T* first = to;
    for (std::int64_t i = 0; i < width; ++i) {
      for (std::int64_t k = 0; k < scale; ++k) *to++ = line[i];
    }
    for (std::int64_t k = 1; k < scale; ++k, to += width * scale) std::copy_n(first, width * scale, to);
  }
  return out.finish();
}

template <typename T>
Tensor upsample_backward(const Tensor& grad, const Shape& sizes, std::int64_t scale) {
  const DenseInput<T> g(grad);
  DenseOutput<T> out(sizes, grad.dtype());
  std::fill_n(out.data(), numel_of(sizes), T{0});
  const std::int64_t width = sizes[3];
  const T* from = g.data();
  for (std::int64_t h = 0; h < sizes[0] * sizes[1] * sizes[2]; ++h) {
    T* line = out.data() + h * width;
    for (std::int64_t k = 0; k < scale; ++k) {
      for (std::int64_t i = 0; i < width; ++i) {
        for (std::int64_t j = 0; j < scale; ++j) line[i] += *from++;
      }
    }
  }
  return out.finish();
}

}  // namespace

Tensor max_pool2d(const Tensor& self, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  const Windows w = pooling("max_pool2d_with_indices", self, kernel, stride, padding);
  Tensor indices = Tensor::empty(out_sizes(w), DType::kI64, self.device());
  const DType compute = op_math(self.dtype());
  Tensor out = on_cpu(self) ? in_op_math(compute, [&]<typename T>(T) { return max_forward<T>(w, self, indices); })
                            : device_max_pool(w, self, indices);
  return finish("max_pool2d_with_indices", compute, std::move(out), {{"self", &self}},
                {{"kernel_size", static_cast<double>(kernel)},
                 {"stride", static_cast<double>(w.stride)},
                 {"padding", static_cast<double>(padding)}},
                {{"indices", &indices, ArgRole::kIndex}},
                [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor& chosen = node.saved[0].tensor;
                  if (!on_cpu(g)) return {device_max_pool_gradient(w, g, chosen)};
                  return {in_op_math(compute, [&]<typename T>(T) { return max_backward<T>(w, g, chosen); })};
                },
                {{"indices", &indices}});
}

Tensor avg_pool2d(const Tensor& self, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  const Windows w = pooling("avg_pool2d", self, kernel, stride, padding);
  const DType compute = op_math(self.dtype());
  Tensor out = on_cpu(self) ? in_op_math(compute, [&]<typename T>(T) { return avg_forward<T>(w, self); })
                            : device_avg_pool(w, self);
  return finish("avg_pool2d", compute, std::move(out), {{"self", &self}},
                {{"kernel_size", static_cast<double>(kernel)},
                 {"stride", static_cast<double>(w.stride)},
                 {"padding", static_cast<double>(padding)}},
                {}, [=](const Tensor& g, const Node&) -> std::vector<Tensor> {
                  if (!on_cpu(g)) return {device_avg_pool_gradient(w, g)};
                  return {in_op_math(compute, [&]<typename T>(T) { return avg_backward<T>(w, g); })};
                });
}

Tensor upsample_nearest2d(const Tensor& self, std::int64_t scale) {
  if (amp::intercepts("upsample_nearest2d")) {
    return amp::run(
        "upsample_nearest2d", [scale](const Tensor& x) { return upsample_nearest2d(x, scale); }, self);
  }
  expect_floating("upsample_nearest2d", self, "self");
  expect_dim("upsample_nearest2d", self, "self", 4);
  if (scale < 1 || scale > 1 << 20) fail("upsample_nearest2d", "a scale from 1 to 2^20", std::to_string(scale));
  const Shape sizes{self.size(0), self.size(1), self.size(2) * scale, self.size(3) * scale};
  const DType compute = op_math(self.dtype());
  Tensor out = on_cpu(self)
                   ? in_op_math(compute, [&]<typename T>(T) { return upsample_forward<T>(self, sizes, scale); })
                   : device_upsample(self, sizes, scale);
  return finish("upsample_nearest2d", compute, std::move(out), {{"self", &self}},
                {{"scale", static_cast<double>(scale)}}, {},
                [=](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Shape& before = node.edges[0].sizes;
                  if (!on_cpu(g)) return {device_upsample_gradient(g, before, scale)};
                  return {in_op_math(compute, [&]<typename T>(T) { return upsample_backward<T>(g, before, scale); })};
                });
}

}  // namespace nanhunt::engine
