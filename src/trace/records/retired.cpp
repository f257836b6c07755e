// SPDX-License-Identifier: Apache-2.0
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.retired;
  write_field(out, rows, range, Coding::kDelta, [](const RetiredRecord& row) { return row.seq; });
  write_field(out, rows, range, Coding::kPlain, [](const RetiredRecord& row) { return row.steps; });
  write_field(out, rows, range, Coding::kPlain, [](const RetiredRecord& row) { return row.anomalies; });
  write_field(out, rows, range, Coding::kPlain, [](const RetiredRecord& row) { return row.ops; });
  write_field(out, rows, range, Coding::kPlain, [](const RetiredRecord& row) { return row.values; });
  write_field(out, rows, range, Coding::kPlain, [](const RetiredRecord& row) { return row.other; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* steps = in.column(rows);
  const std::uint64_t* anomalies = in.column(rows);
  const std::uint64_t* ops = in.column(rows);
  const std::uint64_t* values = in.column(rows);
  const std::uint64_t* other = in.column(rows);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.retired.push_back({seq[i], steps[i], anomalies[i], ops[i], values[i], other[i]});
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kRetired = list_kind<&RecordBatch::retired>(
    {.type = 14, .name = "retired", .encode = encode, .decode = decode, .before = up_to_op<&RecordBatch::retired>});

}  // namespace nanhunt::trace
