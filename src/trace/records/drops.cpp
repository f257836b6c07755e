// SPDX-License-Identifier: Apache-2.0
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.drops;
  write_field(out, rows, range, Coding::kDelta, [](const DropRecord& row) { return row.seq; });
  write_field(out, rows, range, Coding::kPlain, [](const DropRecord& row) { return row.ops; });
  write_field(out, rows, range, Coding::kPlain, [](const DropRecord& row) { return row.values; });
  write_field(out, rows, range, Coding::kPlain, [](const DropRecord& row) { return row.other; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* ops = in.column(rows);
  const std::uint64_t* values = in.column(rows);
  const std::uint64_t* other = in.column(rows);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) batch.drops.push_back({seq[i], ops[i], values[i], other[i]});
  return nullptr;
}

}  // namespace

constinit const RecordKind kDrops = list_kind<&RecordBatch::drops>(
    {.type = 11, .name = "drops", .encode = encode, .decode = decode, .before = up_to_op<&RecordBatch::drops>});

}  // namespace nanhunt::trace
