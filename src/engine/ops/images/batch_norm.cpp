// SPDX-License-Identifier: Apache-2.0
// batch_norm (native_batch_norm) over (N, C) or (N, C, ...). Everything but the stored results is op math: statistics
// and affine parameters may stay in fp32 while the input has 16 bits. With statistics in the input's format all is
// rounded to that. Channel by channel, all images of one in a row.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/ops/loops/dense.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

using kernels::cuda::in_arithmetic_of;

struct Channels {
  std::int64_t images = 0, channels = 0, plane = 0;  // plane: elements per image and channel
  std::int64_t length() const { return images * plane; }
};

// The values of one channel as a row, and back.
template <typename T>
void gather(const Channels& s, const T* from, std::int64_t c, T* row) {
  for (std::int64_t i = 0; i < s.images; ++i) {
    const T* plane = from + (i * s.channels + c) * s.plane;
    for (std::int64_t p = 0; p < s.plane; ++p) row[i * s.plane + p] = plane[p];
  }
}
template <typename T>
void scatter(const Channels& s, const T* row, std::int64_t c, T* to) {
  for (std::int64_t i = 0; i < s.images; ++i) {
    T* plane = to + (i * s.channels + c) * s.plane;
    for (std::int64_t p = 0; p < s.plane; ++p) plane[p] = row[i * s.plane + p];
  }
}

// Mean, then the mean square of what is left: no cancellation when the mean is large.
template <typename T>
struct Moments {
  T mean, variance;  // of the sample: divided by n

  static Moments of(const T* row, std::int64_t n, T* scratch) {
    const T mean = divided(sum_values(row, n), n);
    for (std::int64_t i = 0; i < n; ++i) {
      const T d = row[i] - mean;
      scratch[i] = d * d;
    }
    return {mean, divided(sum_values(scratch, n), n)};
  }
};

struct Arguments {
  const Tensor &input, &weight, &bias;
  Tensor &running_mean, &running_var;
  double momentum, eps;
};

struct Result {
  Tensor out, mean, invstd;  // statistics in the format of the arithmetic
};

void move_average(Tensor& running, const std::vector<double>& batch, double momentum) {
  std::vector<double> values = running.to_vector();
  for (std::size_t c = 0; c < values.size(); ++c) {
    values[c] = momentum * batch[c] + (1 - momentum) * values[c];
    if (running.dtype() != DType::kF64) values[c] = static_cast<float>(values[c]);
  }
  running.copy_from(Tensor::from_values(values, running.sizes(), running.dtype()));
}

template <typename T>
Result forward(const Channels& s, const Arguments& a, bool training) {
  using std::sqrt;
  const DenseInput<T> x(a.input), weight(a.weight), bias(a.bias);
  DenseOutput<T> out(a.input.sizes(), a.input.dtype());
  DenseOutput<T> means({s.channels}, kDTypeOf<T>), invstds({s.channels}, kDTypeOf<T>);
  Scratch<T> row(s.length()), scratch(s.length());
  std::vector<double> mean = a.running_mean.to_vector(), variance = a.running_var.to_vector();
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const auto at = static_cast<std::size_t>(c);
    gather(s, x.data(), c, row.data());
    if (training) {
      const auto moments = Moments<T>::of(row.data(), s.length(), scratch.data());
      mean[at] = static_cast<double>(moments.mean);
      variance[at] = static_cast<double>(moments.variance);
    }
    const T center = static_cast<T>(mean[at]);
    const T invstd = T{1} / sqrt(static_cast<T>(variance[at]) + static_cast<T>(a.eps));
    const T scale = invstd * weight.data()[c], offset = bias.data()[c];
    T* values = row.data();
    for (std::int64_t i = 0, n = s.length(); i < n; ++i) values[i] = (values[i] - center) * scale + offset;
    scatter(s, row.data(), c, out.data());
    means.data()[c] = center;
    invstds.data()[c] = invstd;
  }
  if (training) {
    const auto n = static_cast<double>(s.length());
    for (double& v : variance) v *= n / (n - 1);
    move_average(a.running_mean, mean, a.momentum);
    move_average(a.running_var, variance, a.momentum);
  }
  return {out.finish(), means.finish(), invstds.finish()};
}

// grad_input, grad_weight, grad_bias. In training the statistics depend on the input, in evaluation they do not.
template <typename T>
std::vector<Tensor> backward(const Channels& s, const Tensor& grad, const Node& node, bool training, double eps) {
  using std::sqrt;
  const Tensor &input = node.saved[0].tensor, &gain = node.saved[1].tensor;
  const DenseInput<T> g(grad), x(input), weight(gain), means(node.saved[2].tensor), spreads(node.saved[3].tensor);
  DenseOutput<T> to_input(input.sizes(), input.dtype()), to_weight({s.channels}, gain.dtype());
  DenseOutput<T> to_bias({s.channels}, gain.dtype());
  Scratch<T> row(s.length()), centered(s.length()), products(s.length());
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const T mean = means.data()[c];
    const T invstd = training ? spreads.data()[c] : T{1} / sqrt(spreads.data()[c] + static_cast<T>(eps));
    gather(s, g.data(), c, row.data());
    gather(s, x.data(), c, centered.data());
    T *dy = row.data(), *d = centered.data(), *product = products.data();
    for (std::int64_t i = 0; i < s.length(); ++i) {
      d[i] -= mean;
      product[i] = dy[i] * d[i];
    }
    const T sum = sum_values(dy, s.length()), dot = sum_values(product, s.length());
    to_weight.data()[c] = dot * invstd;
    to_bias.data()[c] = sum;
    const T scale = invstd * weight.data()[c];
    if (training) {
      const T slope = divided(dot * invstd * invstd, s.length()), average = divided(sum, s.length());
      for (std::int64_t i = 0; i < s.length(); ++i) dy[i] = (dy[i] - average - d[i] * slope) * scale;
    } else {
      for (std::int64_t i = 0; i < s.length(); ++i) dy[i] *= scale;
    }
    scatter(s, dy, c, to_input.data());
  }
  std::vector<Tensor> gradients(node.edges.size());
  if (node.edges[0].wanted()) gradients[0] = to_input.finish();
  if (node.edges[1].wanted()) gradients[1] = to_weight.finish();
  if (node.edges[2].wanted()) gradients[2] = to_bias.finish();
  return gradients;
}

Result forward_on_device(const Channels& s, const Arguments& a, DType compute, bool training) {
  const Device device = a.input.device();
  const DType kept = a.running_mean.dtype();
  const Shape per_channel{s.channels};
  Result result{Tensor::empty(a.input.sizes(), a.input.dtype(), device), Tensor::empty(per_channel, compute, device),
                Tensor::empty(per_channel, compute, device)};
  const Tensor new_mean = training ? Tensor::empty(per_channel, kept, device) : Tensor();
  const Tensor new_var = training ? Tensor::empty(per_channel, kept, device) : Tensor();
  device_batch_norm({a.input, a.weight, a.bias, a.running_mean, a.running_var, result.out, result.mean, result.invstd,
                     new_mean, new_var},
                    training, a.momentum, a.eps);
  if (training) {
    a.running_mean.copy_from(new_mean);
    a.running_var.copy_from(new_var);
  }
  return result;
}

std::vector<Tensor> backward_on_device(const Tensor& grad, const Node& node, bool training, double eps) {
  const auto made = [&](std::size_t edge, const Tensor& like) {
    return node.edges[edge].wanted() ? Tensor::empty(like.sizes(), like.dtype(), grad.device()) : Tensor();
  };
  const Tensor &input = node.saved[0].tensor, &gain = node.saved[1].tensor;
  const AffineGradients out{made(0, input), made(1, gain), made(2, gain)};
  device_batch_norm_gradient(grad, {input, gain, node.saved[2].tensor, node.saved[3].tensor}, node.compute_dtype,
                             training, eps, out);
  std::vector<Tensor> gradients{out.input, out.weight, out.bias};
  gradients.resize(node.edges.size());
  return gradients;
}

constexpr std::string_view kOp = "native_batch_norm";

Channels check(const Arguments& a, bool training) {
  expect_floating(kOp, a.input, "input");
  if (a.input.dim() < 2) fail(kOp, "an input (N, C) or (N, C, ...)", describe(a.input));
  const Channels s{a.input.size(0), a.input.size(1),
                   a.input.size(0) * a.input.size(1) == 0 ? 0 : a.input.numel() / (a.input.size(0) * a.input.size(1))};
  const std::pair<std::string_view, const Tensor*> per_channel[] = {
      {"weight", &a.weight}, {"bias", &a.bias}, {"running_mean", &a.running_mean}, {"running_var", &a.running_var}};
  expect_floating(kOp, a.weight, "weight");
  for (const auto& [slot, tensor] : per_channel) {
    expect_dtype(kOp, *tensor, slot, a.weight.dtype());
    const Shape sizes{s.channels};
    if (tensor->sizes() != sizes) fail(kOp, std::string(slot) + " of " + describe(sizes), describe(*tensor));
  }
  if (a.weight.dtype() != a.input.dtype() && a.weight.dtype() != op_math(a.input.dtype())) {
    fail(kOp, "parameters of the input's dtype or of fp32", describe(a.weight) + " for " + describe(a.input));
  }
  if (training && s.length() < 2) fail(kOp, "more than one value per channel in training", describe(a.input));
  return s;
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, Tensor& running_mean,
                  Tensor& running_var, bool training, double momentum, double eps, NormStatistics statistics) {
  const Arguments arguments{input, weight, bias, running_mean, running_var, momentum, eps};
  const Channels s = check(arguments, training);
  const DType compute = norm_arithmetic(input.dtype(), statistics);
  const bool on_host = same_device(kOp, {&input, &weight, &bias, &running_mean, &running_var}).is_cpu();
  const auto forward_here = [&]<typename T>(T) { return forward<T>(s, arguments, training); };
  Result result = on_host ? in_arithmetic_of(compute, forward_here)
                          : forward_on_device(s, arguments, compute, training);
  const ArgRole role = training ? ArgRole::kOverwritten : ArgRole::kRead;
  std::vector<Arg> also;
  if (training) {
    also = {{"save_mean", &result.mean},
            {"save_invstd", &result.invstd},
            {"running_mean", &running_mean},
            {"running_var", &running_var}};
  }
  return finish(kOp, compute, std::move(result.out),
                {{"input", &input},
                 {"weight", &weight},
                 {"bias", &bias},
                 {"running_mean", &running_mean, role},
                 {"running_var", &running_var, role}},
                {{"training", training ? 1.0 : 0.0}, {"momentum", momentum}, {"eps", eps}},
                {{"input", &input},
                 {"weight", &weight},
                 {training ? "save_mean" : "running_mean", training ? &result.mean : &running_mean},
                 {training ? "save_invstd" : "running_var", training ? &result.invstd : &running_var}},
                [=](const Tensor& g, const Node& node) {
                  if (!on_cpu(g)) return backward_on_device(g, node, training, eps);
                  return in_arithmetic_of(
                      compute, [&]<typename T>(T) { return backward<T>(s, g, node, training, eps); });
                },
                Args(also));
}

}  // namespace nanhunt::engine
