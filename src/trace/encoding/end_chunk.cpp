// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/end_chunk.h"

#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {

void encode_index(std::span<const ChunkIndexRow> index, ColumnWriter& out) {
  const RowRange all{0, index.size()};
  write_field(out, index, all, Coding::kDelta, [](const ChunkIndexRow& row) { return row.offset; });
  write_field(out, index, all, Coding::kPlain, [](const ChunkIndexRow& row) { return row.type; });
  write_field(out, index, all, Coding::kPlain, [](const ChunkIndexRow& row) { return row.rows; });
  write_field(out, index, all, Coding::kDelta, [](const ChunkIndexRow& row) { return row.keys.first; });
  write_field(out, index, all, Coding::kDelta, [](const ChunkIndexRow& row) { return row.keys.last; });
}

bool decode_index(ColumnReader& in, std::size_t rows, std::vector<ChunkIndexRow>& index) {
  const std::uint64_t* offset = in.column(rows, Coding::kDelta);
  const std::uint64_t* type = in.column(rows, Coding::kPlain, 0xffff);
  const std::uint64_t* count = in.column(rows, Coding::kPlain, kMaxRows);
  const std::uint64_t* first = in.column(rows, Coding::kDelta);
  const std::uint64_t* last = in.column(rows, Coding::kDelta);
  if (!in.finished()) return false;
  index.clear();
  for (std::size_t i = 0; i < rows; ++i) {
    index.push_back({offset[i], static_cast<std::uint16_t>(type[i]), count[i], {first[i], last[i]}});
  }
  return true;
}

}  // namespace nanhunt::trace
