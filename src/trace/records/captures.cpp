// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = CaptureRecord;

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.captures;
  if (rows[row].file > kMaxTableId) return "its file's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.captures;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.file; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.bytes; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* file = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* bytes = in.column(rows, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.file = static_cast<StringId>(file[i]);
    row.bytes = bytes[i];
    batch.captures.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kCaptures = list_kind<&RecordBatch::captures>(
    {.type = 20,
     .name = "captures",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = after_its_op<&RecordBatch::captures>});

}  // namespace nanhunt::trace
