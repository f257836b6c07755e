// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.steps;
  write_field(out, rows, range, Coding::kDelta, [](const StepRecord& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const StepRecord& row) { return row.skipped; });
  write_field(out, rows, range, Coding::kPlain, [](const StepRecord& row) { return double_bits(row.loss); });
  write_field(out, rows, range, Coding::kPlain, [](const StepRecord& row) { return double_bits(row.lr); });
  write_field(out, rows, range, Coding::kPlain, [](const StepRecord& row) { return double_bits(row.scale); });
  write_field(out, rows, range, Coding::kDelta, [](const StepRecord& row) { return row.end_seq; });
  write_field(out, rows, range, Coding::kDelta, [](const StepRecord& row) { return row.wall_ns; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* skipped = in.column(rows, Coding::kPlain, 1);
  const std::uint64_t* loss = in.column(rows);
  const std::uint64_t* lr = in.column(rows);
  const std::uint64_t* scale = in.column(rows);
  const std::uint64_t* end_seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* wall_ns = in.column(rows, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.steps.push_back({static_cast<std::uint32_t>(step[i]), skipped[i] != 0, bits_double(loss[i]),
                           bits_double(lr[i]), bits_double(scale[i]), end_seq[i],
                           static_cast<std::int64_t>(wall_ns[i])});
  }
  return nullptr;
}

bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.steps[row].end_seq <= op.seq;
}

}  // namespace

constinit const RecordKind kSteps = list_kind<&RecordBatch::steps>(
    {.type = 7, .name = "steps", .encode = encode, .decode = decode, .before = before});

}  // namespace nanhunt::trace
