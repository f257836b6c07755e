// SPDX-License-Identifier: Apache-2.0
// Rows by number, random masks, the scaler's check, and fused updates: each element on its own (lanes.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/unscale_kernels.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

template <class T>
struct PickedLossGradientKernel {
  PickedLossGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t count = call.count;
    if (i >= count) return;
    const T g = static_cast<T>(load_flat<double>(call.grad, 0));
    store_flat(call.out, call.at[i], -(g / static_cast<T>(count)));
  }
};

template <class Word>
struct GatherRowsKernel {
  GatherRowsCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.count * call.width; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = i / call.width, column = i % call.width;
    static_cast<Word*>(call.out.data)[i] =
        static_cast<const Word*>(call.table.data)[call.rows[row] * call.width + column];
  }
};

template <class T>
struct ScatterRowsKernel {
  ScatterRowsCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.used_rows * call.width; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t u = i / call.width, column = i % call.width;
    T sum{0};
    for (std::int64_t k = call.first[u]; k < call.first[u + 1]; ++k) {
      sum += load_flat<T>(call.grad, call.order[k] * call.width + column);
    }
    store_flat(call.out, call.used[u] * call.width + column, sum);
  }
};

// Philox4x32-10, the words that nanhunt/engine/random.h gives.
struct PhiloxBlock {
  std::uint32_t word[4];
};
NANHUNT_HOST_DEVICE inline PhiloxBlock philox_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  PhiloxBlock c{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * c.word[2];
    c = {{static_cast<std::uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// A block of four words each; the first and the last may be used in part. Where they begin is not known of a live
// position: there may be one block that is not used.
struct DropoutMaskKernel {
  DropoutMaskCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const {
    return call.count == 0
               ? 0
               : static_cast<std::int64_t>((call.position + static_cast<std::uint64_t>(call.count) - 1) / 4 -
                                           call.position / 4 + 1);
  }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::uint64_t first = call.position;
    const std::uint64_t index = first / 4 + static_cast<std::uint64_t>(i);
    const PhiloxBlock block = philox_block(call.seed, call.stream, index);
    for (std::uint64_t w = 0; w < 4; ++w) {
      const std::uint64_t position = index * 4 + w;
      if (position < first || position >= first + static_cast<std::uint64_t>(call.count)) continue;
      call.out[position - first] = block.word[w] >= call.dropped ? 1 : 0;
    }
  }
};

template <class T>
struct UnscaleKernel {
  UnscaleCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.walk.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place place = place_of(call.walk, i);
    bool bad = false;
    store(call.grad, place, unscaled(load<T>(call.grad, place), call.inv_scale, bad));
    if (bad) *call.found = 1;  // all that write it write the same
  }
};

template <class T>
struct FusedSgdKernel {
  FusedSgdCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const T lr = static_cast<T>(call.lr), decay = static_cast<T>(call.weight_decay);
    const T momentum = static_cast<T>(call.momentum);
    T p = load_flat<T>(call.param, i);
    T direction = load_flat<T>(call.grad, i);
    if (decay != 0) direction += decay * p;
    if (call.buffer.data != nullptr) {
      const T b = momentum * load_flat<T>(call.buffer, i) + direction;
      direction = call.nesterov ? direction + momentum * b : b;
      store_flat(call.buffer, i, b);
    }
    p -= lr * direction;
    store_flat(call.param, i, p);
  }
};

template <class T>
struct FusedAdamKernel {
  FusedAdamCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const T decay = static_cast<T>(call.decay), weight2 = static_cast<T>(call.weight2);
    const T p = load_flat<T>(call.param, i), g = load_flat<T>(call.grad, i);
    const T weight = call.decoupled ? p * decay : p;
    const T slope = !call.decoupled && decay != 0 ? g + decay * weight : g;
    T m = load_flat<T>(call.exp_avg, i);
    m += static_cast<T>(call.weight1) * (slope - m);
    const T v = static_cast<T>(call.beta2) * load_flat<T>(call.exp_avg_sq, i) + weight2 * slope * slope;
    store_flat(call.exp_avg, i, m);
    store_flat(call.exp_avg_sq, i, v);
    const double step_size = call.step_size;
    const double correction = call.correction;
    store_flat(call.param, i,
               weight - static_cast<T>(step_size) * m / (std::sqrt(v) / static_cast<T>(correction) +
                                                         static_cast<T>(call.eps)));
  }
};

}  // namespace nanhunt::kernels::cuda
