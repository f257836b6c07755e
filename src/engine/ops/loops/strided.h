// SPDX-License-Identifier: Apache-2.0
// How kernels touch tensors: in chunks of op math values (float, or double for fp64; Narrow where an op is told to
// compute in the format of its tensors). A Reader hands out the
// elements of a tensor over a broadcast shape, a Writer stores them with one rounding, a Summer adds them up
// into a smaller shape (gradients of broadcast inputs). Positions are row-major indices into the shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/portable/narrow.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

inline constexpr std::int64_t kChunk = 1024;

template <DType kFormat>
using Narrow = kernels::cuda::Narrow<kFormat>;
using kernels::cuda::divided;

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, double> ? DType::kF64 : DType::kF32;
template <DType kFormat>
constexpr DType kDTypeOf<Narrow<kFormat>> = kFormat;

// Strides over a shape, with neighbouring dimensions merged where they can be walked as one.
class Layout {
 public:
  // Over `shape`, to which `sizes` broadcasts (right-aligned).
  Layout(const Shape& shape, const Shape& sizes, const Shape& strides);
  bool is_dense() const { return sizes_.size() == 1 && strides_[0] == 1; }

  // Covers positions [start, start + count) by calls fn(offset of the first element, stride, length).
  template <typename F>
  void for_runs(std::int64_t start, std::int64_t count, F&& fn) const {
    const std::size_t last = sizes_.size() - 1;
    while (count > 0) {
      std::int64_t rest = start, offset = 0;
      for (std::size_t d = last; d > 0; --d) {
        offset += rest % sizes_[d] * strides_[d];
        rest /= sizes_[d];
      }
      offset += rest * strides_[0];
      const std::int64_t length = std::min(count, sizes_[last] - start % sizes_[last]);
      fn(offset, strides_[last], length);
      start += length;
      count -= length;
    }
  }

 private:
  std::vector<std::int64_t> sizes_, strides_;  // at least one dimension
};

template <typename T>
class Reader {
 public:
  // Operands of another dtype than `common` are first rounded to it, as eager frameworks promote.
  Reader(const Tensor& tensor, const Shape& shape, DType common);
  // The buffer has room for `count`; the result is valid until it or the tensor changes.
  const T* read(std::int64_t start, std::int64_t count, T* buffer) const;

 private:
  Layout layout_;
  const std::byte* data_;
  DType dtype_;
  DType common_;
  bool direct_;
};

template <typename T>
class Writer {
 public:
  explicit Writer(const Tensor& tensor);
  // Where to put results: the tensor itself when it holds T without gaps, else the buffer.
  T* target(std::int64_t start, T* buffer) const { return direct_ ? reinterpret_cast<T*>(data_) + start : buffer; }
  void commit(std::int64_t start, std::int64_t count, const T* values) const;

 private:
  Layout layout_;
  std::byte* data_;
  DType dtype_;
  bool direct_;
};

// Sum in op math whose rounding error grows with the logarithm of the length; always in the same order.
template <typename T>
T sum_block(const T* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  T lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) lanes[k] += values[i + k];
  }
  for (std::int64_t k = 0; i + k < count; ++k) lanes[k] += values[i + k];
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

// Adds block sums pairwise, like the carries of a binary counter.
template <typename T>
class PairwiseSum {
 public:
  void add(T block) {
    std::uint64_t n = blocks_++;
    int level = 0;
    for (; (n & 1) != 0; n >>= 1) block = partial_[level++] + block;
    partial_[level] = block;
  }
  T total() const {
    T sum = 0;
    bool first = true;
    for (int level = 0; level < 64; ++level) {
      if ((blocks_ >> level & 1) == 0) continue;
      sum = first ? partial_[level] : partial_[level] + sum;
      first = false;
    }
    return sum;
  }

 private:
  T partial_[64] = {};
  std::uint64_t blocks_ = 0;
};

// The one way every reduction sums values that lie in a row.
template <typename T>
T sum_values(const T* values, std::int64_t count) {
  if (count <= kChunk) return sum_block(values, count);
  PairwiseSum<T> sum;
  for (std::int64_t start = 0; start < count; start += kChunk) {
    sum.add(sum_block(values + start, std::min(kChunk, count - start)));
  }
  return sum.total();
}

// One after the other, each sum rounded: what is added to a large one is lost.
template <DType kFormat>
Narrow<kFormat> sum_values(const Narrow<kFormat>* values, std::int64_t count) {
  Narrow<kFormat> sum;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

// Any number of elements at once, to and from memory without gaps.
template <typename T>
void read_all(const Reader<T>& reader, std::int64_t start, std::int64_t count, T* out) {
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = std::min(kChunk, count - done);
    const T* values = reader.read(start + done, n, out + done);
    if (values != out + done) std::copy_n(values, n, out + done);
  }
}
template <typename T>
void write_all(const Writer<T>& writer, std::int64_t start, std::int64_t count, const T* values) {
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = std::min(kChunk, count - done);
    if (T* to = writer.target(start + done, nullptr)) std::copy_n(values + done, n, to);
    writer.commit(start + done, n, values + done);
  }
}

template <typename T>
class Summer {
 public:
  Summer(const Shape& shape, const Shape& sizes);
  void add(std::int64_t start, std::int64_t count, const T* values);
  // The sums as a tensor, rounded to `via` and then to `dtype`.
  Tensor finish(DType via, DType dtype) const;

 private:
  Shape sizes_;
  Layout layout_;
  std::vector<T> sums_;
};

// Writes the values of `source` to `target` (same shape), converting with one rounding; the same dtype copies bits.
// They may overlap.
void copy_elements(const Tensor& target, const Tensor& source);

extern template class Reader<float>;
extern template class Reader<double>;
extern template class Reader<Narrow<DType::kF16>>;
extern template class Reader<Narrow<DType::kBF16>>;
extern template class Writer<float>;
extern template class Writer<double>;
extern template class Writer<Narrow<DType::kF16>>;
extern template class Writer<Narrow<DType::kBF16>>;
extern template class Summer<float>;
extern template class Summer<double>;

}  // namespace nanhunt::engine
