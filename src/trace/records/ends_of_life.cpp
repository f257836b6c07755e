// SPDX-License-Identifier: Apache-2.0
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.ends_of_life;
  write_field(out, rows, range, Coding::kDelta, [](const EndOfLifeRecord& row) { return row.storage; });
  write_field(out, rows, range, Coding::kDelta, [](const EndOfLifeRecord& row) { return row.seq; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* storage = in.column(rows, Coding::kDelta);
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) batch.ends_of_life.push_back({storage[i], seq[i]});
  return nullptr;
}

}  // namespace

constinit const RecordKind kEndsOfLife = list_kind<&RecordBatch::ends_of_life>(
    {.type = 9,
     .name = "ends_of_life",
     .encode = encode,
     .decode = decode,
     .before = up_to_op<&RecordBatch::ends_of_life>});

}  // namespace nanhunt::trace
