// SPDX-License-Identifier: Apache-2.0
// Walks several strided tensors together over one output shape, a row of the innermost dimension at a time, in
// row-major logical order. Broadcast dimensions have stride 0.
#pragma once

#include <cstddef>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanhunt/tensor_view.h"

namespace nanhunt::record {

// Strides (elements) with which `tensor` is read at the coordinates of `sizes`; empty: it does not broadcast to them.
inline std::optional<std::vector<std::int64_t>> broadcast_strides(const TensorView& tensor,
                                                                  std::span<const std::int64_t> sizes) {
  if (tensor.sizes.size() != tensor.strides.size() || tensor.sizes.size() > sizes.size()) return std::nullopt;
  std::vector<std::int64_t> strides(sizes.size(), 0);
  const std::size_t lead = sizes.size() - tensor.sizes.size();
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.sizes[d] != sizes[lead + d]) return std::nullopt;
    strides[lead + d] = tensor.strides[d];
  }
  return strides;
}

// Calls visit(offsets, row_start, count) for each row: offsets[k] is where tensor k's row starts, in elements, and
// row_start is the flat index of its first element. Dimensions that follow each other in memory, in all tensors, are
// one row. Stops when visit returns false.
template <typename Visit>
void for_each_row(std::span<const std::int64_t> sizes, std::span<const std::vector<std::int64_t>> strides,
                  Visit&& visit) {
  std::int64_t numel = 1;
  for (std::int64_t s : sizes) numel *= s;
  if (numel <= 0) return;
  std::size_t outer = sizes.empty() ? 0 : sizes.size() - 1;
  std::int64_t row = sizes.empty() ? 1 : sizes.back();
  const auto goes_on = [&](const std::vector<std::int64_t>& s) { return s[outer - 1] == s.back() * row; };
  while (outer > 0 && (sizes[outer - 1] == 1 || std::all_of(strides.begin(), strides.end(), goes_on)))
    row *= sizes[--outer];
  std::vector<std::int64_t> index(outer, 0);
  std::vector<std::int64_t> offsets(strides.size(), 0);
  for (std::int64_t start = 0; start < numel; start += row) {
    if (!visit(std::span<const std::int64_t>(offsets), start, row)) return;
    for (std::size_t d = outer; d-- > 0;) {
      const bool wraps = index[d] + 1 == sizes[d];
      for (std::size_t k = 0; k < strides.size(); ++k) {
        offsets[k] += wraps ? -index[d] * strides[k][d] : strides[k][d];
      }
      if (!wraps) {
        ++index[d];
        break;
      }
      index[d] = 0;
    }
  }
}

}  // namespace nanhunt::record
