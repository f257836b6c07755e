// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/blocks.h"

#include <algorithm>
#include <numeric>

namespace nanhunt::checkpoint {
namespace {

std::optional<BlockLayout> make_layout(const Piece& first, const Piece* second) {
  BlockLayout out;
  for (std::size_t d = 0; d < first.sizes.size(); ++d) {
    const std::int64_t size = first.sizes[d], a = first.strides[d], b = second != nullptr ? second->strides[d] : a;
    if (size == 0) return BlockLayout{{{0, {1, 1}}}, 1};
    if (size == 1) continue;
    if (a == 0 && b == 0) {
      if (out.repeats > (std::int64_t{1} << 40) / size) return std::nullopt;
      out.repeats *= size;
    } else {
      out.dims.push_back({size, {a, b}});
    }
  }
  std::stable_sort(out.dims.begin(), out.dims.end(),
                   [](const BlockDim& x, const BlockDim& y) { return x.strides[0] > y.strides[0]; });
  // Each step outwards must pass all that is within: then no byte is met twice, and the work is bounded by the file.
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    std::vector<BlockDim> sorted = out.dims;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [side](const BlockDim& x, const BlockDim& y) { return x.strides[side] > y.strides[side]; });
    std::int64_t within = 1;
    for (std::size_t i = sorted.size(); i-- > 0;) {
      if (sorted[i].strides[side] < within) return std::nullopt;
      within = sorted[i].strides[side] * sorted[i].size;
    }
  }
  std::vector<BlockDim> joined;
  for (const BlockDim& dim : out.dims) {
    const bool joins = !joined.empty() && joined.back().strides[0] == dim.strides[0] * dim.size &&
                       joined.back().strides[1] == dim.strides[1] * dim.size;
    if (joins)
      joined.back() = {joined.back().size * dim.size, dim.strides};
    else
      joined.push_back(dim);
  }
  out.dims = std::move(joined);
  return out;
}

bool cut(std::vector<BlockDim> dims, std::array<std::int64_t, 2> offset, std::int64_t max_span,
         const std::function<bool(const Block&)>& use) {
  Block block{offset, {1, 1}, 1, {}};
  for (const BlockDim& dim : dims) {
    block.elements *= dim.size;
    for (std::size_t side = 0; side < 2; ++side) block.span[side] += (dim.size - 1) * dim.strides[side];
  }
  if (block.elements == 0) return true;
  if (dims.empty() || (block.span[0] <= max_span && block.span[1] <= max_span)) {
    block.dims = std::move(dims);
    return use(block);
  }
  const BlockDim outer = dims.front();
  std::int64_t inner = 1;
  for (std::size_t side = 0; side < 2; ++side) {
    std::int64_t span = 1;
    for (std::size_t d = 1; d < dims.size(); ++d) span += (dims[d].size - 1) * dims[d].strides[side];
    // As many steps of the outer dimension as fit behind one inner span.
    const std::int64_t fit =
        outer.strides[side] > 0 && span <= max_span ? (max_span - span) / outer.strides[side] + 1 : 1;
    inner = side == 0 ? fit : std::min(inner, fit);
  }
  for (std::int64_t i = 0; i < outer.size; i += inner) {
    const std::int64_t size = std::min(inner, outer.size - i);
    std::vector<BlockDim> part(dims.begin() + (size == 1 ? 1 : 0), dims.end());
    if (size != 1) part.front().size = size;
    if (!cut(std::move(part), {offset[0] + i * outer.strides[0], offset[1] + i * outer.strides[1]}, max_span, use))
      return false;
  }
  return true;
}

}  // namespace

std::int64_t BlockLayout::elements() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1},
                         [](std::int64_t n, const BlockDim& d) { return n * d.size; });
}

std::optional<BlockLayout> layout_of(const Piece& piece) { return make_layout(piece, nullptr); }
std::optional<BlockLayout> layout_of(const Piece& first, const Piece& second) { return make_layout(first, &second); }

bool for_each_block(const BlockLayout& layout, std::int64_t max_span, const std::function<bool(const Block&)>& use) {
  return cut(layout.dims, {0, 0}, max_span, use);
}

std::vector<std::int64_t> index_in_piece(const Piece& piece, const BlockLayout& layout, std::int64_t at) {
  std::int64_t offset = 0;
  for (std::size_t d = layout.dims.size(); d-- > 0;) {
    offset += at % layout.dims[d].size * layout.dims[d].strides[0];
    at /= layout.dims[d].size;
  }
  std::vector<std::size_t> order(piece.sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return piece.strides[x] > piece.strides[y]; });
  std::vector<std::int64_t> out(piece.sizes.size(), 0);
  for (const std::size_t d : order) {
    if (piece.strides[d] == 0 || piece.sizes[d] <= 1) continue;
    out[d] = offset / piece.strides[d];
    offset %= piece.strides[d];
  }
  return out;
}

}  // namespace nanhunt::checkpoint
