// SPDX-License-Identifier: Apache-2.0
// The elementwise driver: a functor over op math values, applied chunk by chunk to broadcast, strided
// operands of any dtype. The functor is generic over float and double. One with a member chunk(out, count, inputs...)
// for float computes whole chunks itself. A formula of kernels/portable/formulas.h runs on devices too.
#pragma once

#include <array>
#include <utility>

#include "kernels/portable/formulas.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {

namespace formulas = kernels::cuda;

// A scalar argument in the op math type of `like`.
template <typename T>
T cast_like(T /*like*/, double scalar) {
  return static_cast<T>(scalar);
}

namespace detail {

// Calls emit(start, count, results) for each chunk; results go where target(start, buffer) says.
template <typename T, typename F, typename Target, typename Emit, typename... Tensors>
void for_chunks(const Shape& shape, DType common, F f, Target target, Emit emit, const Tensors&... inputs) {
  constexpr std::size_t kInputs = sizeof...(Tensors);
  const std::array<Reader<T>, kInputs> readers{Reader<T>(inputs, shape, common)...};
  alignas(64) T buffers[kInputs + 1][kChunk];
  const std::int64_t n = numel_of(shape);
  for (std::int64_t start = 0; start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    std::array<const T*, kInputs> in{};
    for (std::size_t k = 0; k < kInputs; ++k) in[k] = readers[k].read(start, count, buffers[k]);
    T* out = target(start, buffers[kInputs]);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (requires { f.chunk(out, count, in[I]...); }) {
        f.chunk(out, count, in[I]...);
      } else {
        for (std::int64_t i = 0; i < count; ++i) out[i] = f(in[I][i]...);
      }
    }
    (std::make_index_sequence<kInputs>());
    emit(start, count, out);
  }
}

}  // namespace detail

// out[i] = f(inputs[i]...): operands promote to `common` and compute in its op math. `out` may be one of
// the inputs (in place), but must not overlap them otherwise.
template <typename F, typename... Tensors>
void map_into(const Tensor& out, DType common, F f, const Tensors&... inputs) {
  if (!on_cpu(out)) {
    if constexpr (requires { typename F::Formula; }) {
      const Tensor* const list[] = {&inputs...};
      device_map(out, common, formula_call(f), list);
    } else {
      expect_cpu("map", {&out});
    }
    return;
  }
  const auto run = [&]<typename T>(T) {
    const Writer<T> writer(out);
    detail::for_chunks<T>(
        out.sizes(), common, f, [&](std::int64_t start, T* buffer) { return writer.target(start, buffer); },
        [&](std::int64_t start, std::int64_t count, const T* values) { writer.commit(start, count, values); },
        inputs...);
  };
  common == DType::kF64 ? run(double{}) : run(float{});
}

// A new tensor of `common` (the result's dtype) and `shape`.
template <typename F, typename... Tensors>
Tensor map(const Shape& shape, DType common, F f, const Tensors&... inputs) {
  Tensor out = Tensor::empty(shape, common, common_device("map", {&inputs...}));
  map_into(out, common, f, inputs...);
  return out;
}

// The gradient of one input of a broadcasting op whose output has `shape` and `common`: f elementwise, summed in
// op math over the dimensions that were broadcast. Rounded to the output's dtype, then to the input's.
template <typename F, typename... Tensors>
Tensor map_gradient(const Edge& edge, const Shape& shape, DType common, F f, const Tensors&... inputs) {
  if (!edge.wanted()) return {};
  if (edge.sizes == shape && edge.dtype == common) return map(shape, common, f, inputs...);
  if (!common_device("map", {&inputs...}).is_cpu()) {
    const Tensor* const list[] = {&inputs...};
    return device_gradient_sum(edge.sizes, edge.dtype, shape, common, formula_call(f), list);
  }
  const auto run = [&]<typename T>(T) {
    Summer<T> sums(shape, edge.sizes);
    detail::for_chunks<T>(
        shape, common, f, [](std::int64_t, T* buffer) { return buffer; },
        [&](std::int64_t start, std::int64_t count, const T* values) { sums.add(start, count, values); }, inputs...);
    return sums.finish(common, edge.dtype);
  };
  return common == DType::kF64 ? run(double{}) : run(float{});
}

}  // namespace nanhunt::engine
