// SPDX-License-Identifier: Apache-2.0
// The end chunk of a segment: where its chunks are and which keys they hold.
#pragma once

#include <span>
#include <vector>

#include "src/trace/record_kind.h"

namespace nanhunt::trace {

struct ChunkIndexRow {
  std::uint64_t offset = 0;
  std::uint16_t type = 0;
  std::uint64_t rows = 0;
  KeyRange keys;
};

void encode_index(std::span<const ChunkIndexRow> index, ColumnWriter& out);
bool decode_index(ColumnReader& in, std::size_t rows, std::vector<ChunkIndexRow>& index);

}  // namespace nanhunt::trace
