// SPDX-License-Identifier: Apache-2.0
// What a GPU does at once, one after the other: the lanes of a row (kernels/portable/lanes.h), and products.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/portable/formats.h"
#include "kernels/portable/lanes.h"
#include "kernels/device_ops.h"

namespace nanhunt::testing_support {

using kernels::cuda::kLanes;

struct SerialRowThreads {
  template <class F>
  void each(std::int64_t n, const F& f) const {
    for (std::int64_t i = n; i-- > 0;) f(i);
  }
  template <class T, class F>
  T block_sum(std::int64_t n, const F& f) const {
    T lanes[kLanes];
    for (int k = 0; k < kLanes; ++k) lanes[k] = kernels::cuda::lane_sum<T>(k, n, f);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
    }
    return lanes[0];
  }
  template <class T, class F>
  T sum(std::int64_t n, const F& f) const {
    return kernels::cuda::sum_of_blocks<T>(*this, n, f);
  }
  template <class T, class F>
  T largest(std::int64_t n, const F& f) const {
    T out = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < n; ++i) out = f(i) > out ? f(i) : out;
    return out;
  }
};

template <class T>
void plain_multiply(const kernels::ProductCall& call) {
  const auto at = [&](const kernels::MatrixOperand& o, std::int64_t batch, std::int64_t row, std::int64_t column) {
    const std::int64_t i = o.transposed ? column * o.lead + row : row * o.lead + column;
    return kernels::cuda::load_element<T>(call.dtype, o.data, batch * o.step + i);
  };
  for (std::int64_t b = 0; b < call.batch; ++b) {
    for (std::int64_t i = 0; i < call.m; ++i) {
      for (std::int64_t j = 0; j < call.n; ++j) {
        const std::int64_t c = (b * call.m + i) * call.n + j;
        T sum = call.beta != 0 ? kernels::cuda::load_element<T>(call.result(), call.c, c) : T{0};
        for (std::int64_t k = 0; k < call.k; ++k) sum += at(call.a, b, i, k) * at(call.b, b, k, j);
        kernels::cuda::store_element(call.result(), call.c, c, sum);
      }
    }
  }
}

}  // namespace nanhunt::testing_support
