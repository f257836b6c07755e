// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace nanhunt::checkpoint {
namespace {

Piece piece_of(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
  return {0, 0, 0, std::move(sizes), std::move(strides)};
}

// Offsets of all elements, as nested loops over the sizes give them.
std::vector<std::int64_t> offsets_of(const Piece& piece) {
  std::vector<std::int64_t> out{0};
  for (std::size_t d = 0; d < piece.sizes.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t base : out)
      for (std::int64_t i = 0; i < piece.sizes[d]; ++i) next.push_back(base + i * piece.strides[d]);
    out = std::move(next);
  }
  return out;
}

struct Visited {
  std::vector<std::int64_t> first, second;
  std::int64_t longest = 0;
};
Visited visit(const BlockLayout& layout, std::int64_t max_span) {
  Visited out;
  for_each_block(layout, max_span, [&](const Block& block) {
    out.longest = std::max({out.longest, block.span[0], block.span[1]});
    for_each_element(block, [&](std::int64_t a, std::int64_t b) {
      EXPECT_LT(a, block.span[0]);
      EXPECT_LT(b, block.span[1]);
      out.first.push_back(block.offset[0] + a);
      out.second.push_back(block.offset[1] + b);
    });
    return true;
  });
  return out;
}

const Piece kPieces[] = {
    piece_of({}, {}),
    piece_of({7}, {1}),
    piece_of({7}, {3}),
    piece_of({4, 5, 6}, {30, 6, 1}),
    piece_of({6, 4, 5}, {1, 30, 6}),
    piece_of({4, 3, 2}, {60, 10, 4}),
    piece_of({1, 9, 1}, {100, 2, 77}),
};

TEST(Blocks, every_element_is_met_once_in_blocks_that_fit) {
  for (const Piece& piece : kPieces) {
    for (const std::int64_t span : {1, 2, 7, 31, 1000}) {
      const auto layout = layout_of(piece);
      ASSERT_TRUE(layout.has_value());
      Visited seen = visit(*layout, span);
      EXPECT_LE(seen.longest, span);
      EXPECT_TRUE(std::is_sorted(seen.first.begin(), seen.first.end()));
      std::vector<std::int64_t> expected = offsets_of(piece);
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(seen.first, expected);
    }
  }
}

TEST(Blocks, an_index_leads_back_to_the_element) {
  for (const Piece& piece : kPieces) {
    const auto layout = layout_of(piece);
    const Visited seen = visit(*layout, 1000);
    for (std::size_t at = 0; at < seen.first.size(); ++at) {
      const auto index = index_in_piece(piece, *layout, static_cast<std::int64_t>(at));
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < index.size(); ++d) {
        EXPECT_LT(index[d], piece.sizes[d]);
        offset += index[d] * piece.strides[d];
      }
      EXPECT_EQ(offset, seen.first[at]);
    }
  }
}

TEST(Blocks, two_layouts_of_one_shape_are_walked_side_by_side) {
  const Piece a = piece_of({4, 5, 6}, {30, 6, 1}), b = piece_of({4, 5, 6}, {1, 4, 20});
  const auto layout = layout_of(a, b);
  ASSERT_TRUE(layout.has_value());
  for (const std::int64_t span : {1, 9, 1000}) {
    const Visited seen = visit(*layout, span);
    EXPECT_EQ(seen.first, offsets_of(a));
    EXPECT_EQ(seen.second, offsets_of(b));
  }
}

TEST(Blocks, repeated_bytes_are_counted_and_met_once) {
  const auto layout = layout_of(piece_of({3, std::int64_t{1} << 30}, {1, 0}));
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->repeats, std::int64_t{1} << 30);
  EXPECT_EQ(layout->elements(), 3);
}

TEST(Blocks, elements_that_share_bytes_are_refused) {
  EXPECT_FALSE(layout_of(piece_of({3, 3}, {1, 1})).has_value());
  EXPECT_FALSE(layout_of(piece_of({3, 3}, {2, 1})).has_value());
  EXPECT_TRUE(layout_of(piece_of({3, 3}, {3, 1})).has_value());
}

TEST(Blocks, nothing_is_met_of_an_empty_piece) {
  EXPECT_TRUE(visit(*layout_of(piece_of({0, 4}, {4, 1})), 8).first.empty());
}

}  // namespace
}  // namespace nanhunt::checkpoint
