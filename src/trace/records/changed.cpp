// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = ChangedRecord;

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.changed;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.before; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.after; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.since_seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.since_step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.opaque ? 1 : 0; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* before = in.column(rows, Coding::kDelta);
  const std::uint64_t* after = in.column(rows, Coding::kDelta);
  const std::uint64_t* since_seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* since_step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* opaque = in.column(rows, Coding::kPlain, 1);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.before = before[i];
    row.after = after[i];
    row.since_seq = since_seq[i];
    row.since_step = static_cast<std::uint32_t>(since_step[i]);
    row.opaque = opaque[i] != 0;
    batch.changed.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kChanged = list_kind<&RecordBatch::changed>(
    {.type = 18,
     .name = "changed",
     .encode = encode,
     .decode = decode,
     .before = up_to_op<&RecordBatch::changed>});

}  // namespace nanhunt::trace
