// SPDX-License-Identifier: Apache-2.0
// conv2d (convolution): windows unfolded to columns, some images at a time, then one BLAS product per chunk and group.
// The number of images in a chunk depends on sizes alone, and so does the order of every sum.
#include <array>
#include <optional>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/blas.h"
#include "src/engine/ops/loops/dense.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/device/device_images.h"
#include "src/engine/ops/images/unfold.h"

namespace nanhunt::engine {
namespace {

constexpr std::int64_t kColumnBytes = 512 << 10;  // of one chunk: stays in the second-level cache

struct Convolution {
  Windows w;
  std::int64_t out_channels = 0, groups = 1;

  std::int64_t rows() const { return w.channels * w.taps(); }
  std::int64_t images_per_chunk(std::size_t value_size) const { return images_at_a_time(w, value_size, kColumnBytes); }
};

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
  Unfolder<T> unfolder(w, chunk);
  Scratch<T> columns(rows * chunk * plane), products(conv.out_channels * chunk * plane);
  for (std::int64_t first = 0; first < w.images; first += chunk) {
    const std::int64_t count = std::min(chunk, w.images - first);
    unfolder.unfold(x.data() + first * w.channels * w.plane(), count, columns.data());
    if (rows == 0) std::fill_n(products.data(), conv.out_channels * count * plane, T{0});
    const std::int64_t inner = rows / conv.groups, outs = conv.out_channels / conv.groups, positions = count * plane;
    for (std::int64_t g = 0; g < conv.groups; ++g) {
      gemm("convolution", BlasOperand<T>{filters.data() + g * outs * inner, inner},
           BlasOperand<T>{columns.data() + g * inner * positions, positions}, T{0},
           products.data() + g * outs * positions, outs, positions, inner);
    }
    for_channel_planes(conv.out_channels, plane, count, out.data() + first * conv.out_channels * plane, products.data(),
                       [&](T* __restrict to, const T* __restrict from, std::int64_t o) {
                         const T offset = static_cast<T>(offsets[static_cast<std::size_t>(o)]);
                         for (std::int64_t p = 0; p < plane; ++p) to[p] = from[p] + offset;
                       });
  }
  return out.finish();
}

// Gradients of input, weight and bias; undefined where not wanted.
template <typename T>
std::array<Tensor, 3> backward(const Convolution& conv, const Tensor& grad, const Tensor& input, const Tensor& weight,
                               const ConvolutionWanted& wanted, const Shape& weight_sizes) {
  const Windows& w = conv.w;
  const std::int64_t rows = conv.rows(), plane = w.out_plane(), outs = conv.out_channels;
  const std::int64_t inner = rows / conv.groups, group_outs = outs / conv.groups;  // of one group
  const DType dtype = grad.dtype();
  const DenseInput<T> g(grad);
  std::optional<DenseInput<T>> x, filters;
  if (wanted.weight) x.emplace(input);
  if (wanted.input) filters.emplace(weight);
  DenseOutput<T> to_input(wanted.input ? Shape{w.images, w.channels, w.height, w.width} : Shape{0}, dtype);
  DenseOutput<T> to_weight(wanted.weight ? weight_sizes : Shape{0}, dtype), to_bias({wanted.bias ? outs : 0}, dtype);
  if (wanted.weight) std::fill_n(to_weight.data(), outs * inner, T{0});
  std::vector<PairwiseSum<T>> sums(static_cast<std::size_t>(wanted.bias ? outs : 0));
  const std::int64_t chunk = conv.images_per_chunk(sizeof(T));
  Unfolder<T> unfolder(w, chunk);
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
      unfolder.unfold(x->data() + offset, count, columns.data());
      for (std::int64_t k = 0; k < conv.groups; ++k) {
        gemm("convolution_backward", BlasOperand<T>{gradients.data() + k * group_outs * positions, positions},
             BlasOperand<T>{columns.data() + k * inner * positions, positions, true}, T{1},
             to_weight.data() + k * group_outs * inner, group_outs, inner, positions);
      }
    }
    if (wanted.input) {
      if (outs == 0) std::fill_n(columns.data(), rows * positions, T{0});
      for (std::int64_t k = 0; k < conv.groups; ++k) {
        gemm("convolution_backward", BlasOperand<T>{filters->data() + k * group_outs * inner, inner, true},
             BlasOperand<T>{gradients.data() + k * group_outs * positions, positions}, T{0},
             columns.data() + k * inner * positions, inner, positions, group_outs);
      }
      unfolder.fold(columns.data(), count, to_input.data() + offset);
    }
  }
  for (std::size_t o = 0; o < sums.size(); ++o) to_bias.data()[o] = sums[o].total();
  return {wanted.input ? to_input.finish() : Tensor(), wanted.weight ? to_weight.finish() : Tensor(),
          wanted.bias ? to_bias.finish() : Tensor()};
}

Convolution check(const Tensor& input, const Tensor& weight, const Tensor& bias, std::int64_t stride,
                  std::int64_t padding, std::int64_t groups) {
  expect_floating("convolution", weight, "weight");
  expect_dim("convolution", weight, "weight", 4);
  Convolution conv{make_windows("convolution", input, "input", weight.size(2), weight.size(3), stride, padding),
                   weight.size(0), groups};
  if (weight.dtype() != input.dtype()) {
    fail("convolution", "operands of one dtype", describe(input) + " and " + describe(weight));
  }
  if (groups < 1 || conv.w.channels % groups != 0 || conv.out_channels % groups != 0) {
    fail("convolution", "groups that divide the channels of input and output",
         std::to_string(groups) + " of " + describe(input) + " and " + describe(weight));
  }
  if (weight.size(1) != input.size(1) / groups) {
    const std::string shares = groups == 1 ? "" : " in " + std::to_string(groups) + " groups";
    fail("convolution", "as many channels in the input as in the weight",
         describe(input) + " and " + describe(weight) + shares);
  }
  if (!bias.defined()) return conv;
  expect_dtype("convolution", bias, "bias", input.dtype());
  const Shape per_channel{weight.size(0)};
  if (bias.sizes() != per_channel) fail("convolution", "bias of " + describe(per_channel), describe(bias));
  return conv;
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, std::int64_t stride,
              std::int64_t padding, std::int64_t groups) {
  if (amp::intercepts("conv2d")) {
    return amp::run(
        "conv2d",
        [=](const Tensor& x, const Tensor& w, const Tensor& b) { return conv2d(x, w, b, stride, padding, groups); },
        input, weight, bias);
  }
  const Convolution conv = check(input, weight, bias, stride, padding, groups);
  const bool on_host = same_device("convolution", {&input, &weight, &bias}).is_cpu();
  std::vector<Arg> inputs{{"input", &input}, {"weight", &weight}};
  if (bias.defined()) inputs.push_back({"bias", &bias});
  Tensor out = on_host ? in_op_math(input.dtype(), [&]<typename T>(T) { return forward<T>(conv, input, weight, bias); })
                       : device_convolution(conv.w, groups, input, weight, bias);
  return finish("convolution", op_math(input.dtype()), std::move(out), Args(inputs),
                {{"stride", static_cast<double>(stride)},
                 {"padding", static_cast<double>(padding)},
                 {"groups", static_cast<double>(groups)}},
                {{"input", saved_for(weight, input)}, {"weight", saved_for(input, weight)}},
                [conv](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const std::vector<Edge>& edges = node.edges;
                  const ConvolutionWanted wanted{edges[0].wanted(), edges[1].wanted(),
                                                 edges.size() > 2 && edges[2].wanted()};
                  const Tensor &x = node.saved[0].tensor, &filters = node.saved[1].tensor;
                  auto gradients = in_op_math(g.dtype(), [&]<typename T>(T) {
                    if (on_cpu(g)) return backward<T>(conv, g, x, filters, wanted, edges[1].sizes);
                    return device_convolution_gradient(conv.w, conv.groups, g, x, filters, wanted, edges[1].sizes,
                                                       conv.images_per_chunk(sizeof(T)));
                  });
                  return {gradients.begin(), gradients.begin() + static_cast<std::ptrdiff_t>(edges.size())};
                });
}

}  // namespace nanhunt::engine
