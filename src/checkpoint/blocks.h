// SPDX-License-Identifier: Apache-2.0
// One piece of a tensor, or two of one shape, cut into blocks that fit into memory, in the order of the first one's
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "src/checkpoint/checkpoint.h"

namespace nanhunt::checkpoint {

struct BlockDim {
  std::int64_t size = 1;
  std::array<std::int64_t, 2> strides{};  // of the first and the second piece, in elements
  bool operator==(const BlockDim&) const = default;
};

// Dimensions from the largest stride to the smallest, joined where they can be; those that repeat the same bytes are
// left out and counted in `repeats`.
struct BlockLayout {
  std::vector<BlockDim> dims;
  std::int64_t repeats = 1;
  std::int64_t elements() const;
};
// nullopt: elements of a piece share bytes in a way that is no plain repetition.
std::optional<BlockLayout> layout_of(const Piece& piece);
std::optional<BlockLayout> layout_of(const Piece& first, const Piece& second);  // sizes are equal

struct Block {
  std::array<std::int64_t, 2> offset{}, span{};  // in elements: where it begins, and how far it reaches
  std::int64_t elements = 0;
  std::vector<BlockDim> dims;
};
// Blocks of which neither span is longer than `max_span`. Ends early where `use` returns false.
bool for_each_block(const BlockLayout& layout, std::int64_t max_span, const std::function<bool(const Block&)>& use);

// Calls use(first, second) with the place of each element within the block's two spans, in the layout's order.
template <typename Use>
void for_each_element(const Block& block, Use&& use) {
  std::vector<std::int64_t> at(block.dims.size(), 0);
  std::array<std::int64_t, 2> place{};
  for (std::int64_t n = 0; n < block.elements; ++n) {
    use(place[0], place[1]);
    for (std::size_t d = block.dims.size(); d-- > 0;) {
      const BlockDim& dim = block.dims[d];
      const bool carries = ++at[d] == dim.size;
      const std::int64_t steps = carries ? 1 - dim.size : 1;
      if (carries) at[d] = 0;
      for (std::size_t side = 0; side < 2; ++side) place[side] += steps * dim.strides[side];
      if (!carries) break;
    }
  }
}

// Where element `at` of the layout's order lies in the piece, as an index into its sizes.
std::vector<std::int64_t> index_in_piece(const Piece& piece, const BlockLayout& layout, std::int64_t at);

}  // namespace nanhunt::checkpoint
