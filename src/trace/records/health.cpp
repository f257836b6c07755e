// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = HealthRecord;

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.health;
  if (rows[row].first_bad > kMaxTableId) return "its first bad's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.health;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.bad; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.bad_tensors; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.first_bad; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.gradient_norm); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.weight_norm); });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* bad = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* bad_tensors = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* first_bad = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* gradient_norm = in.column(rows);
  const std::uint64_t* weight_norm = in.column(rows);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.bad = static_cast<std::uint32_t>(bad[i]);
    row.bad_tensors = static_cast<std::uint32_t>(bad_tensors[i]);
    row.first_bad = static_cast<StringId>(first_bad[i]);
    row.gradient_norm = bits_double(gradient_norm[i]);
    row.weight_norm = bits_double(weight_norm[i]);
    batch.health.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kHealth = list_kind<&RecordBatch::health>(
    {.type = 15,
     .name = "health",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::health>});

}  // namespace nanhunt::trace
