// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = NormRecord;
constexpr std::uint64_t kMaxKind = static_cast<std::uint64_t>(MarkKind::kLabel);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.norms;
  if (static_cast<std::uint64_t>(rows[row].kind) > kMaxKind) return "its kind is unknown";
  if (rows[row].path > kMaxTableId) return "its path's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.norms;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.kind; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.path; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.norm); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.amax); });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* kind = in.column(rows, Coding::kPlain, kMaxKind);
  const std::uint64_t* path = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* norm = in.column(rows);
  const std::uint64_t* amax = in.column(rows);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.kind = static_cast<MarkKind>(kind[i]);
    row.path = static_cast<StringId>(path[i]);
    row.norm = bits_double(norm[i]);
    row.amax = bits_double(amax[i]);
    batch.norms.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kNorms = list_kind<&RecordBatch::norms>(
    {.type = 16,
     .name = "norms",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::norms>});

}  // namespace nanhunt::trace
