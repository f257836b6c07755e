// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = NoteRecord;

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.notes;
  if (rows[row].text > kMaxTableId) return "its text's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.notes;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.text; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.count; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* text = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* count = in.column(rows, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.text = static_cast<StringId>(text[i]);
    row.count = count[i];
    batch.notes.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kNotes = list_kind<&RecordBatch::notes>(
    {.type = 21,
     .name = "notes",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::notes>});

}  // namespace nanhunt::trace
