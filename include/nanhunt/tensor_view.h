// SPDX-License-Identifier: Apache-2.0
// A borrowed look at one tensor: pointer, dtype, sizes and strides. Owns nothing; valid only as
// long as the owner keeps the memory and the two arrays alive (for a hook: until it returns).
#pragma once

#include <cstdint>
#include <span>

#include "nanhunt/dtype.h"

namespace nanhunt {

struct TensorView {
  const void* data = nullptr;             // first element; nullptr: contents are not available
  DType dtype = DType::kF32;
  std::span<const std::int64_t> sizes;    // empty: a scalar (one element)
  std::span<const std::int64_t> strides;  // in elements, same length; may be 0 (broadcast) or negative

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t s : sizes) n *= s;
    return n;
  }
  // Row-major without gaps. Dimensions of size 1 do not matter.
  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] == 1) continue;
      if (strides[i] != expected) return sizes[i] == 0;
      expected *= sizes[i];
    }
    return true;
  }
};

}  // namespace nanhunt
