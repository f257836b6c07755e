// SPDX-License-Identifier: Apache-2.0
// Ops over rows: reductions, softmax, layer norm, and their gradients (lanes.h). Steps and their order are the CPU
// engine's.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/constants.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/lanes.h"
#include "kernels/portable/narrow.h"
#include "kernels/portable/scalar_math.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

NANHUNT_HOST_DEVICE inline float row_exp(float x) { return exact_exp(x); }
NANHUNT_HOST_DEVICE inline double row_exp(double x) { return std::exp(x); }

// A row as a function of the index in it.
template <class T>
struct RowReader {
  const DeviceArray& array;
  const Walk& walk;
  std::int64_t start;
  NANHUNT_HOST_DEVICE T operator()(std::int64_t i) const { return load<T>(array, walk, start + i); }
};

// The value of a row from its sum, and a term of that sum.
template <class T>
NANHUNT_HOST_DEVICE inline T reduction_term(Reduction kind, T x) {
  return kind == Reduction::kNorm ? x * x : x;
}
template <class T>
NANHUNT_HOST_DEVICE inline T reduction_result(Reduction kind, T sum, std::int64_t length) {
  if (kind == Reduction::kMean) return sum / static_cast<T>(static_cast<double>(length));
  if (kind == Reduction::kNorm) return std::sqrt(sum);
  return sum;
}

template <class T>
struct ReduceKernel {
  ReduceCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    const RowReader<T> in{call.in, call.rows.walk, row * call.rows.length};
    if (call.kind == Reduction::kAmax) {
      // NaN wins: counted, for largest() leaves it out.
      const T nans =
          lanes.template sum<T>(call.rows.length, [&](std::int64_t i) { return in(i) == in(i) ? T{0} : T{1}; });
      const T largest = lanes.template largest<T>(call.rows.length, in);
      put(lanes, row, nans > T{0} ? T{kNaN<T>} : largest);
      return;
    }
    const Reduction kind = call.kind;
    const T sum = lanes.template sum<T>(call.rows.length, [&](std::int64_t i) { return reduction_term(kind, in(i)); });
    put(lanes, row, reduction_result(kind, sum, call.rows.length));
  }

 private:
  template <class Lanes>
  NANHUNT_HOST_DEVICE void put(const Lanes& lanes, std::int64_t row, T value) const {
    lanes.each(1, [&](std::int64_t) { store_flat(call.out, row, value); });
  }
};

// A few long rows: first the sum of every block of every row, then pairs of blocks until few are left, then the row.
template <class T>
struct BlockSumKernel {
  ReduceCall call;
  std::int64_t blocks;  // of a row
  T* sums;              // [row][block]
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count * blocks; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t item) const {
    const std::int64_t row = item / blocks, start = item % blocks * kSumBlock;
    const std::int64_t rest = call.rows.length - start;
    const RowReader<T> in{call.in, call.rows.walk, row * call.rows.length + start};
    const Reduction kind = call.kind;
    const T sum = lanes.template block_sum<T>(rest < kSumBlock ? rest : kSumBlock,
                                              [&](std::int64_t i) { return reduction_term(kind, in(i)); });
    lanes.each(1, [&](std::int64_t) { sums[item] = sum; });
  }
};

// One level of the binary counter: pairs become one, an odd last one goes to the row's tail.
template <class T>
struct PairSumKernel {
  const T* from;
  T* to;
  T* tails;
  std::int64_t rows, length;  // of `from`, a row
  bool first_tail;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return rows * ((length + 1) / 2); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t item) const {
    const std::int64_t pairs = length / 2, wide = (length + 1) / 2;
    const std::int64_t row = item / wide, i = item % wide;
    const T* in = from + row * length;
    if (i < pairs) {
      to[row * pairs + i] = in[2 * i] + in[2 * i + 1];
    } else {
      tails[row] = first_tail ? in[length - 1] : in[length - 1] + tails[row];
    }
  }
};

template <class T>
struct LastSumKernel {
  ReduceCall call;
  const T* sums;  // [row][left]
  const T* tails;
  std::int64_t left;
  bool has_tail;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t row) const {
    BlockSums<T> all;
    for (std::int64_t i = 0; i < left; ++i) all.add(sums[row * left + i]);
    const T sum = has_tail ? all.total() + tails[row] : all.total();
    store_flat(call.out, row, reduction_result(call.kind, sum, call.rows.length));
  }
};

// Runs a reduction of long rows: `launch` runs a kernel, `room` gives a T* for so many. Which way a row is summed makes
// no difference to its bits, so it is a matter of speed alone.
inline constexpr std::int64_t kLongRow = 16 * kSumBlock, kFewBlocks = 64;
template <class T, class Launch, class Room>
void reduce_long_rows(const ReduceCall& call, Launch& launch, const Room& room) {
  const std::int64_t rows = call.rows.count;
  std::int64_t left = (call.rows.length + kSumBlock - 1) / kSumBlock;
  T* sums = room(rows * left);
  T* other = room(rows * (left / 2 + 1));
  T* tails = room(rows);
  launch(BlockSumKernel<T>{call, left, sums});
  bool has_tail = false;
  while (left > kFewBlocks) {
    launch(PairSumKernel<T>{sums, other, tails, rows, left, !has_tail});
    has_tail = has_tail || left % 2 != 0;
    left /= 2;
    T* const swapped = sums;
    sums = other;
    other = swapped;
  }
  launch(LastSumKernel<T>{call, sums, tails, left, has_tail});
}

template <class T>
struct SoftmaxKernel {
  SoftmaxCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    const std::int64_t length = call.rows.length, start = row * length;
    const RowReader<T> in{call.in, call.rows.walk, start};
    const T largest = lanes.template largest<T>(length, in);
    const T total = lanes.template sum<T>(length, [&](std::int64_t i) { return row_exp(in(i) - largest); });
    if (call.kind == SoftmaxKind::kLogSoftmax) {
      const T log_total = std::log(total);
      lanes.each(length,
                 [&](std::int64_t i) { store(call.out, call.rows.walk, start + i, in(i)-largest - log_total); });
    } else {
      lanes.each(length, [&](std::int64_t i) {
        store(call.out, call.rows.walk, start + i, row_exp(in(i) - largest) / total);
      });
    }
  }
};

template <class T>
struct SoftmaxGradientKernel {
  SoftmaxGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    const std::int64_t length = call.rows.length, start = row * length;
    const RowReader<T> dy{call.grad, call.rows.walk, start}, y{call.result, call.rows.walk, start};
    if (call.kind == SoftmaxKind::kLogSoftmax) {
      const T total = lanes.template sum<T>(length, dy);
      lanes.each(length, [&](std::int64_t i) {
        store(call.out, call.rows.walk, start + i, dy(i) - row_exp(y(i)) * total);
      });
    } else {
      const T total = lanes.template sum<T>(length, [&](std::int64_t i) { return dy(i) * y(i); });
      lanes.each(length, [&](std::int64_t i) { store(call.out, call.rows.walk, start + i, (dy(i) - total) * y(i)); });
    }
  }
};

template <class T>
NANHUNT_HOST_DEVICE inline T affine(const DeviceArray& array, std::int64_t i, T otherwise) {
  return array.data == nullptr ? otherwise : load_flat<T>(array, i);
}

template <class T>
struct LayerNormKernel {
  LayerNormCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    using std::sqrt;
    const std::int64_t width = call.rows.length, start = row * width;
    const RowReader<T> in{call.in, call.rows.walk, start};
    const T mean = divided(row_sum<T>(lanes, width, in), width);
    const T squares = row_sum<T>(lanes, width, [&](std::int64_t i) {
      const T d = in(i) - mean;
      return d * d;
    });
    const T variance = divided(squares, width);
    const T rstd = T{1} / sqrt(variance + static_cast<T>(call.eps));
    lanes.each(width, [&](std::int64_t i) {
      const T y = (in(i) - mean) * rstd * affine<T>(call.weight, i, T{1}) + affine<T>(call.bias, i, T{0});
      store_flat(call.out, start + i, y);
    });
    lanes.each(1, [&](std::int64_t) {
      store_flat(call.mean, row, mean);
      store_flat(call.rstd, row, rstd);
    });
  }
};

template <class T>
struct LayerNormGradientKernel {
  LayerNormGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.count; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const {
    const std::int64_t width = call.rows.length, start = row * width;
    const RowReader<T> dy{call.grad, call.rows.walk, start}, x{call.in, call.rows.walk, start};
    const T mean = load_flat<T>(call.mean, row), rstd = load_flat<T>(call.rstd, row);
    const auto weighted = [&](std::int64_t i) { return dy(i) * affine<T>(call.weight, i, T{1}); };
    const auto normalised = [&](std::int64_t i) { return (x(i) - mean) * rstd; };
    const T mean_d = divided(row_sum<T>(lanes, width, weighted), width);
    const T mean_product =
        divided(row_sum<T>(lanes, width, [&](std::int64_t i) { return weighted(i) * normalised(i); }), width);
    lanes.each(width, [&](std::int64_t i) {
      store_flat(call.grad_in, start + i, rstd * (weighted(i) - mean_d - normalised(i) * mean_product));
    });
  }
};

// Gradients of weight and bias: one column each, rows in ascending order.
template <class T>
struct LayerNormAffineGradientKernel {
  LayerNormGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.rows.length; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    T weight{0}, bias{0};
    for (std::int64_t row = 0; row < call.rows.count; ++row) {
      const Place place = place_of(call.rows.walk, row * call.rows.length + i);
      const T dy = load<T>(call.grad, place);
      const T xhat = (load<T>(call.in, place) - load_flat<T>(call.mean, row)) * load_flat<T>(call.rstd, row);
      weight += dy * xhat;
      bias += dy;
    }
    if (call.grad_weight.data != nullptr) store_flat(call.grad_weight, i, weight);
    if (call.grad_bias.data != nullptr) store_flat(call.grad_bias, i, bias);
  }
};

template <class T>
struct PickedLossKernel {
  PickedLossCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return 1; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t) const {
    const std::int64_t count = call.count;
    const T sum = lanes.template sum<T>(
        count, [&](std::int64_t i) { return static_cast<T>(-load_flat<double>(call.in, call.at[i])); });
    lanes.each(1, [&](std::int64_t) { store_flat(call.out, 0, sum / static_cast<T>(count)); });
  }
};

}  // namespace nanhunt::kernels::cuda
