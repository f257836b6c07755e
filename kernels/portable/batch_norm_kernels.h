// SPDX-License-Identifier: Apache-2.0
// Batch norm and its gradient, a channel by lanes (lanes.h). Steps and their order are the CPU engine's.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/lanes.h"
#include "kernels/portable/narrow.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

template <class T>
struct BatchNormKernel {
  BatchNormCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t channel) const {
    using std::sqrt;
    const std::int64_t length = call.rows.length, start = channel * length;
    const auto in = [&](std::int64_t i) { return load<T>(call.in, call.rows.walk, start + i); };
    T mean, variance;
    if (call.training) {
      mean = divided(row_sum<T>(lanes, length, in), length);
      const T squares = row_sum<T>(lanes, length, [&](std::int64_t i) {
        const T d = in(i) - mean;
        return d * d;
      });
      variance = divided(squares, length);
    } else {
      mean = load_flat<T>(call.running_mean, channel);
      variance = load_flat<T>(call.running_var, channel);
    }
    const T invstd = T{1} / sqrt(variance + static_cast<T>(call.eps));
    const T scale = invstd * load_flat<T>(call.weight, channel), offset = load_flat<T>(call.bias, channel);
    lanes.each(length, [&](std::int64_t i) {
      store(call.out, call.rows.walk, start + i, (in(i) - mean) * scale + offset);
    });
    lanes.each(1, [&](std::int64_t) {
      store_flat(call.mean, channel, mean);
      store_flat(call.invstd, channel, invstd);
      if (!call.training) return;
      const double values = static_cast<double>(length);
      average(call.running_mean, call.new_mean, channel, static_cast<double>(mean));
      average(call.running_var, call.new_var, channel, static_cast<double>(variance) * (values / (values - 1)));
    });
  }

 private:
  NANHUNT_HOST_DEVICE void average(const DeviceArray& before, const DeviceArray& after, std::int64_t channel,
                                   double batch) const {
    const double value = call.momentum * batch + (1 - call.momentum) * load_flat<double>(before, channel);
    const bool is_double = after.dtype == DType::kF64;
    store_flat(after, channel, is_double ? value : static_cast<double>(static_cast<float>(value)));
  }
};

template <class T>
struct BatchNormGradientKernel {
  BatchNormGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t channel) const {
    using std::sqrt;
    const std::int64_t length = call.rows.length, start = channel * length;
    const T mean = load_flat<T>(call.mean, channel), spread = load_flat<T>(call.spread, channel);
    const T invstd = call.training ? spread : T{1} / sqrt(spread + static_cast<T>(call.eps));
    const auto dy = [&](std::int64_t i) { return load<T>(call.grad, call.rows.walk, start + i); };
    const auto d = [&](std::int64_t i) { return load<T>(call.in, call.rows.walk, start + i) - mean; };
    const T sum = row_sum<T>(lanes, length, dy);
    const T dot = row_sum<T>(lanes, length, [&](std::int64_t i) { return dy(i) * d(i); });
    lanes.each(1, [&](std::int64_t) {
      if (call.grad_weight.data != nullptr) store_flat(call.grad_weight, channel, dot * invstd);
      if (call.grad_bias.data != nullptr) store_flat(call.grad_bias, channel, sum);
    });
    if (call.grad_in.data == nullptr) return;
    const T scale = invstd * load_flat<T>(call.weight, channel);
    const T slope = divided(dot * invstd * invstd, length), average = divided(sum, length);
    lanes.each(length, [&](std::int64_t i) {
      const T out = call.training ? (dy(i) - average - d(i) * slope) * scale : dy(i) * scale;
      store(call.grad_in, call.rows.walk, start + i, out);
    });
  }
};

}  // namespace nanhunt::kernels::cuda
