// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tensor_walk.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace nanhunt::kernels {
namespace {

template <std::size_t kSize>
void copy_strided(const unsigned char* from, std::int64_t stride_bytes, std::int64_t count, unsigned char* to) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * std::int64_t{kSize}, from + i * stride_bytes, kSize);
}

void copy_row(const unsigned char* from, std::int64_t stride, std::int64_t count, std::size_t size, unsigned char* to) {
  const std::int64_t stride_bytes = stride * static_cast<std::int64_t>(size);
  if (stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * size);
    return;
  }
  switch (size) {
    case 1:
      return copy_strided<1>(from, stride_bytes, count, to);
    case 2:
      return copy_strided<2>(from, stride_bytes, count, to);
    case 4:
      return copy_strided<4>(from, stride_bytes, count, to);
    default:
      return copy_strided<8>(from, stride_bytes, count, to);
  }
}

}  // namespace

TensorWalk::TensorWalk(const TensorView& tensor) : data_(tensor.data), dtype_(tensor.dtype) {
  if (tensor.sizes.size() != tensor.strides.size()) {
    throw std::invalid_argument("[compute_stats] expected as many strides as sizes, got " +
                                std::to_string(tensor.strides.size()) + " strides and " +
                                std::to_string(tensor.sizes.size()) + " sizes");
  }
  std::int64_t logical_stride = 1;
  const bool plain = tensor.is_contiguous();  // then there is nothing to walk: no lists of dimensions
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    const std::int64_t size = tensor.sizes[i];
    if (size < 0) throw std::invalid_argument("[compute_stats] expected sizes >= 0, got " + std::to_string(size));
    if (size == 0) {
      count_ = repeats_ = 0;
      dimensions_.clear();
      return;
    }
    if (tensor.strides[i] == 0) {
      repeats_ *= size;
    } else {
      if (!plain && size != 1) dimensions_.push_back({size, tensor.strides[i], logical_stride});
      count_ *= size;
    }
    logical_stride *= size;
  }
  if (data_ == nullptr) throw std::invalid_argument("[compute_stats] expected contents, got a view without data");
  std::reverse(dimensions_.begin(), dimensions_.end());

  for (const Dimension& d : dimensions_) {
    if (!merged_.empty() && merged_.back().stride == d.size * d.stride) {
      merged_.back() = {merged_.back().size * d.size, d.stride, d.logical_stride};
    } else {
      merged_.push_back(d);
    }
  }
  contiguous_ = merged_.empty() || (merged_.size() == 1 && merged_[0].stride == 1);
}

std::int64_t TensorWalk::logical_index(std::int64_t i) const {
  if (dimensions_.empty()) return i;
  std::int64_t logical = 0;
  for (std::size_t d = dimensions_.size(); d-- > 0;) {
    logical += (i % dimensions_[d].size) * dimensions_[d].logical_stride;
    i /= dimensions_[d].size;
  }
  return logical;
}

void TensorWalk::gather(std::int64_t begin, std::size_t count, unsigned char* to) const {
  const std::size_t size = dtype_size(dtype_);
  const Dimension& inner = merged_.back();
  auto left = static_cast<std::int64_t>(count);
  while (left > 0) {
    std::int64_t row = begin / inner.size;
    const std::int64_t column = begin % inner.size;
    std::int64_t offset = column * inner.stride;
    for (std::size_t d = merged_.size() - 1; d-- > 0;) {
      offset += (row % merged_[d].size) * merged_[d].stride;
      row /= merged_[d].size;
    }
    const std::int64_t run = std::min(left, inner.size - column);
    copy_row(static_cast<const unsigned char*>(data_) + offset * static_cast<std::int64_t>(size), inner.stride, run,
             size, to);
    to += run * static_cast<std::int64_t>(size);
    begin += run;
    left -= run;
  }
}

}  // namespace nanhunt::kernels
