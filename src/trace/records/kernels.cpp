// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = KernelRecord;

const char* refuse(const RecordBatch& batch, std::size_t row) {
  if (batch.kernels[row].name > kMaxTableId) return "its name's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.kernels;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.name; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.own; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.count; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.timed; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.duration_ns); });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* name = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* own = in.column(rows, Coding::kPlain, 1);
  const std::uint64_t* count = in.column(rows, Coding::kDelta);
  const std::uint64_t* timed = in.column(rows, Coding::kDelta);
  const std::uint64_t* duration = in.column(rows, Coding::kPlain);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.name = static_cast<StringId>(name[i]);
    row.own = own[i] != 0;
    row.count = count[i];
    row.timed = timed[i];
    row.duration_ns = unzigzag_signed(duration[i]);
    batch.kernels.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kKernels = list_kind<&RecordBatch::kernels>(
    {.type = 23,
     .name = "kernels",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = after_its_op<&RecordBatch::kernels>});

}  // namespace nanhunt::trace
