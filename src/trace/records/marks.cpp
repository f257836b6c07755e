// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

constexpr std::uint64_t kMaxKind = static_cast<std::uint64_t>(MarkKind::kLabel);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  if (static_cast<std::uint64_t>(batch.marks[row].kind) > kMaxKind) return "its kind is unknown";
  return batch.marks[row].path > kMaxTableId ? "its path's id is above 1048575" : nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.marks;
  write_field(out, rows, range, Coding::kDelta, [](const MarkRecord& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const MarkRecord& row) { return row.step; });
  write_field(out, rows, range, Coding::kDelta, [](const MarkRecord& row) { return row.micro_batch; });
  write_field(out, rows, range, Coding::kPlain, [](const MarkRecord& row) { return row.kind; });
  write_field(out, rows, range, Coding::kPlain, [](const MarkRecord& row) { return row.path; });
  write_field(out, rows, range, Coding::kDelta, [](const MarkRecord& row) { return row.value; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* micro_batch = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* kind = in.column(rows, Coding::kPlain, kMaxKind);
  const std::uint64_t* path = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* value = in.column(rows, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.marks.push_back({seq[i], static_cast<std::uint32_t>(step[i]), static_cast<std::uint32_t>(micro_batch[i]),
                           static_cast<MarkKind>(kind[i]), static_cast<StringId>(path[i]), value[i]});
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kMarks = list_kind<&RecordBatch::marks>(
    {.type = kMarksType,
     .name = "marks",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::marks>});

}  // namespace nanhunt::trace
