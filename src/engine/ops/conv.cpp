// SPDX-License-Identifier: Apache-2.0
// conv2d (convolution): windows unfolded to columns, some images at a time, then one BLAS product per chunk. The number
// of images in a chunk depends on sizes alone, and so does the order of every sum.
#include <array>
#include <cstring>
#include <optional>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/blas.h"
#include "src/engine/ops/dense.h"
#include "src/engine/ops/windows.h"

namespace nanhunt::engine {
namespace {

constexpr std::int64_t kColumnBytes = 512 << 10;  // of one chunk: stays in the second-level cache

struct Convolution {
  Windows w;
  std::int64_t out_channels = 0;

  std::int64_t rows() const { return w.channels * w.kernel_height * w.kernel_width; }
  std::int64_t images_per_chunk(std::size_t value_size) const {
    const std::int64_t one = rows() * w.out_plane() * static_cast<std::int64_t>(value_size);
    const std::int64_t fitting = kColumnBytes / std::max<std::int64_t>(one, 1);
    return std::clamp<std::int64_t>(fitting, 1, std::max<std::int64_t>(w.images, 1));
  }
};

// One row of the column matrix for one image: the input element that each output position sees at this place of the
// window.
struct Tap {
  Range down, across;
  std::int64_t shift_down, shift_across;  // input position = output position * stride + shift

  Tap(const Windows& w, std::int64_t kh, std::int64_t kw)
      : down(inside(kh - w.padding, w.stride, w.height, w.out_height)),
        across(inside(kw - w.padding, w.stride, w.width, w.out_width)),
        shift_down(kh - w.padding),
        shift_across(kw - w.padding) {}
  bool empty() const { return down.begin >= down.end || across.begin >= across.end; }
  // Lines of the image and of the output lie alike: all of them move as one run.
  static bool is_one_run(const Windows& w) { return w.stride == 1 && w.out_width == w.width; }
  std::int64_t run_start(const Windows& w) const { return down.begin * w.out_width + across.begin; }
  std::int64_t run_length(const Windows& w) const {
    return (down.end - down.begin - 1) * w.out_width + across.end - across.begin;
  }
  std::int64_t input_at(const Windows& w, std::int64_t oh, std::int64_t ow) const {
    return (oh * w.stride + shift_down) * w.width + ow * w.stride + shift_across;
  }
};

// Zeros where the window hangs over the edge of the image.
template <typename T>
void clear_outside(const Windows& w, const Tap& tap, T* to) {
  if (tap.empty()) {
    std::fill_n(to, w.out_plane(), T{0});
    return;
  }
  std::fill_n(to, tap.down.begin * w.out_width, T{0});
  std::fill(to + tap.down.end * w.out_width, to + w.out_plane(), T{0});
  for (std::int64_t oh = tap.down.begin; oh < tap.down.end; ++oh) {
    T* line = to + oh * w.out_width;
    for (std::int64_t ow = 0; ow < tap.across.begin; ++ow) line[ow] = T{0};
    for (std::int64_t ow = tap.across.end; ow < w.out_width; ++ow) line[ow] = T{0};
  }
}

template <typename T>
void unfold_plane(const Windows& w, const Tap& tap, const T* plane, T* to) {
  if (!tap.empty() && Tap::is_one_run(w)) {
    std::memcpy(to + tap.run_start(w), plane + tap.input_at(w, tap.down.begin, tap.across.begin),
                static_cast<std::size_t>(tap.run_length(w)) * sizeof(T));
  } else {
    for (std::int64_t oh = tap.down.begin; oh < tap.down.end; ++oh) {
      const T* from = plane + tap.input_at(w, oh, 0);
      T* line = to + oh * w.out_width;
      for (std::int64_t ow = tap.across.begin; ow < tap.across.end; ++ow) line[ow] = from[ow * w.stride];
    }
  }
  clear_outside(w, tap, to);
}

// Adds column values to the places they were read from; clears those that were outside.
template <typename T>
void fold_plane(const Windows& w, const Tap& tap, T* __restrict from, T* __restrict plane) {
  if (tap.empty()) return;
  if (Tap::is_one_run(w)) {
    clear_outside(w, tap, from);
    const T* run = from + tap.run_start(w);
    T* to = plane + tap.input_at(w, tap.down.begin, tap.across.begin);
    for (std::int64_t i = 0, n = tap.run_length(w); i < n; ++i) to[i] += run[i];
    return;
  }
  for (std::int64_t oh = tap.down.begin; oh < tap.down.end; ++oh) {
    T* to = plane + tap.input_at(w, oh, 0);
    const T* line = from + oh * w.out_width;
    for (std::int64_t ow = tap.across.begin; ow < tap.across.end; ++ow) to[ow * w.stride] += line[ow];
  }
}

// Calls fn(tap, plane of the images, its part of the columns) for each channel, place in the window, and image.
// Columns: one row per channel and place, one column per image and output position.
template <typename T, typename F>
void for_taps(const Windows& w, T* images, std::int64_t count, F fn) {
  std::int64_t row = 0;
  for (std::int64_t c = 0; c < w.channels; ++c) {
    for (std::int64_t kh = 0; kh < w.kernel_height; ++kh) {
      for (std::int64_t kw = 0; kw < w.kernel_width; ++kw, ++row) {
        const Tap tap(w, kh, kw);
        for (std::int64_t i = 0; i < count; ++i) {
          fn(tap, images + (i * w.channels + c) * w.plane(), (row * count + i) * w.out_plane());
        }
      }
    }
  }
}

// (images, channels, plane) <-> (channels, images * plane), for `count` images.
template <typename From, typename To, typename Move>
void for_channel_planes(std::int64_t channels, std::int64_t plane, std::int64_t count, From* images, To* rows,
                        Move move) {
  for (std::int64_t o = 0; o < channels; ++o) {
    for (std::int64_t i = 0; i < count; ++i) {
      move(images + (i * channels + o) * plane, rows + (o * count + i) * plane, o);
    }
  }
}

template <typename T>
Tensor forward(const Convolution& conv, const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const Windows& w = conv.w;
  const std::int64_t rows = conv.rows(), plane = w.out_plane();
  const DenseInput<T> x(input), filters(weight);
  const std::vector<double> offsets =
      bias.defined() ? bias.to_vector() : std::vector<double>(static_cast<std::size_t>(conv.out_channels), 0.0);
  DenseOutput<T> out({w.images, conv.out_channels, w.out_height, w.out_width}, input.dtype());
  const std::int64_t chunk = conv.images_per_chunk(sizeof(T));
  Scratch<T> columns(rows * chunk * plane), products(conv.out_channels * chunk * plane);
  for (std::int64_t first = 0; first < w.images; first += chunk) {
    const std::int64_t count = std::min(chunk, w.images - first);
    for_taps(w, x.data() + first * w.channels * w.plane(), count, [&](const Tap& tap, const T* from, std::int64_t at) {
      unfold_plane(w, tap, from, columns.data() + at);
    });
    if (rows == 0) std::fill_n(products.data(), conv.out_channels * count * plane, T{0});
    gemm("convolution", BlasOperand<T>{filters.data(), rows}, BlasOperand<T>{columns.data(), count * plane}, T{0},
         products.data(), conv.out_channels, count * plane, rows);
    for_channel_planes(conv.out_channels, plane, count, out.data() + first * conv.out_channels * plane, products.data(),
                       [&](T* __restrict to, const T* __restrict from, std::int64_t o) {
                         const T offset = static_cast<T>(offsets[static_cast<std::size_t>(o)]);
                         for (std::int64_t p = 0; p < plane; ++p) to[p] = from[p] + offset;
                       });
  }
  return out.finish();
}

struct Wanted {
  bool input, weight, bias;
};

// Gradients of input, weight and bias; undefined where not wanted.
template <typename T>
std::array<Tensor, 3> backward(const Convolution& conv, const Tensor& grad, const Tensor& input, const Tensor& weight,
                               const Wanted& wanted, const Shape& weight_sizes) {
  const Windows& w = conv.w;
  const std::int64_t rows = conv.rows(), plane = w.out_plane(), outs = conv.out_channels;
  const DType dtype = grad.dtype();
  const DenseInput<T> g(grad);
  std::optional<DenseInput<T>> x, filters;
  if (wanted.weight) x.emplace(input);
  if (wanted.input) filters.emplace(weight);
  DenseOutput<T> to_input(wanted.input ? Shape{w.images, w.channels, w.height, w.width} : Shape{0}, dtype);
  DenseOutput<T> to_weight(wanted.weight ? weight_sizes : Shape{0}, dtype), to_bias({wanted.bias ? outs : 0}, dtype);
  if (wanted.input) std::fill_n(to_input.data(), w.images * w.channels * w.plane(), T{0});
  if (wanted.weight) std::fill_n(to_weight.data(), outs * rows, T{0});
  std::vector<PairwiseSum<T>> sums(static_cast<std::size_t>(wanted.bias ? outs : 0));
  const std::int64_t chunk = conv.images_per_chunk(sizeof(T));
  Scratch<T> columns(rows * chunk * plane), gradients(outs * chunk * plane);
  for (std::int64_t first = 0; first < w.images; first += chunk) {
    const std::int64_t count = std::min(chunk, w.images - first), positions = count * plane;
    for_channel_planes(outs, plane, count, g.data() + first * outs * plane, gradients.data(),
                       [&](const T* from, T* to, std::int64_t) { std::copy_n(from, plane, to); });
    for (std::size_t o = 0; o < sums.size(); ++o) {
      sums[o].add(sum_values(gradients.data() + static_cast<std::int64_t>(o) * positions, positions));
    }
    const std::int64_t offset = first * w.channels * w.plane();
    if (wanted.weight) {
      for_taps(w, x->data() + offset, count, [&](const Tap& tap, const T* from, std::int64_t at) {
        unfold_plane(w, tap, from, columns.data() + at);
      });
      gemm("convolution_backward", BlasOperand<T>{gradients.data(), positions},
           BlasOperand<T>{columns.data(), positions, true}, T{1}, to_weight.data(), outs, rows, positions);
    }
    if (wanted.input && outs > 0) {
      gemm("convolution_backward", BlasOperand<T>{filters->data(), rows, true},
           BlasOperand<T>{gradients.data(), positions}, T{0}, columns.data(), rows, positions, outs);
      for_taps(w, to_input.data() + offset, count, [&](const Tap& tap, T* to, std::int64_t at) {
        fold_plane(w, tap, columns.data() + at, to);
      });
    }
  }
  for (std::size_t o = 0; o < sums.size(); ++o) to_bias.data()[o] = sums[o].total();
  return {wanted.input ? to_input.finish() : Tensor(), wanted.weight ? to_weight.finish() : Tensor(),
          wanted.bias ? to_bias.finish() : Tensor()};
}

Convolution check(const Tensor& input, const Tensor& weight, const Tensor& bias, std::int64_t stride,
                  std::int64_t padding) {
  expect_floating("convolution", weight, "weight");
  expect_dim("convolution", weight, "weight", 4);
  Convolution conv{make_windows("convolution", input, "input", weight.size(2), weight.size(3), stride, padding),
                   weight.size(0)};
  if (weight.dtype() != input.dtype()) {
    fail("convolution", "operands of one dtype", describe(input) + " and " + describe(weight));
  }
  if (weight.size(1) != input.size(1)) {
    fail("convolution", "as many channels in the input as in the weight", describe(input) + " and " + describe(weight));
  }
  if (!bias.defined()) return conv;
  expect_dtype("convolution", bias, "bias", input.dtype());
  const Shape per_channel{weight.size(0)};
  if (bias.sizes() != per_channel) fail("convolution", "bias of " + describe(per_channel), describe(bias));
  return conv;
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, std::int64_t stride,
              std::int64_t padding) {
  if (amp::intercepts()) {
    return amp::run(
        "conv2d",
        [=](const Tensor& x, const Tensor& w, const Tensor& b) { return conv2d(x, w, b, stride, padding); }, input,
        weight, bias);
  }
  const Convolution conv = check(input, weight, bias, stride, padding);
  std::vector<Arg> inputs{{"input", &input}, {"weight", &weight}};
  if (bias.defined()) inputs.push_back({"bias", &bias});
  Tensor out = in_op_math(input.dtype(), [&]<typename T>(T) { return forward<T>(conv, input, weight, bias); });
  return finish("convolution", op_math(input.dtype()), std::move(out), Args(inputs),
                {{"stride", static_cast<double>(stride)}, {"padding", static_cast<double>(padding)}},
                {{"input", saved_for(weight, input)}, {"weight", saved_for(input, weight)}},
                [conv](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const std::vector<Edge>& edges = node.edges;
                  const Wanted wanted{edges[0].wanted(), edges[1].wanted(), edges.size() > 2 && edges[2].wanted()};
                  auto gradients = in_op_math(g.dtype(), [&]<typename T>(T) {
                    return backward<T>(conv, g, node.saved[0].tensor, node.saved[1].tensor, wanted, edges[1].sizes);
                  });
                  return {gradients.begin(), gradients.begin() + static_cast<std::ptrdiff_t>(edges.size())};
                });
}

}  // namespace nanhunt::engine
