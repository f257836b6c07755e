// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = ProbeRecord;
constexpr std::uint64_t kMaxMode = static_cast<std::uint64_t>(ProbeMode::kWider);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.probes;
  if (static_cast<std::uint64_t>(rows[row].mode) > kMaxMode) return "its mode is unknown";
  if (static_cast<int>(rows[row].dtype) >= kDTypeCount) return "its dtype is unknown";
  if (rows[row].text > kMaxTableId) return "its text's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.probes;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.mode; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.dtype; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.ops; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.ran ? 1 : 0; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.nan); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.pos_inf); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.neg_inf); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.flat_index); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.number); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.text; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* mode = in.column(rows, Coding::kPlain, kMaxMode);
  const std::uint64_t* dtype = in.column(rows, Coding::kPlain, kDTypeCount - 1);
  const std::uint64_t* ops = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* ran = in.column(rows, Coding::kPlain, 1);
  const std::uint64_t* nan = in.column(rows);
  const std::uint64_t* pos_inf = in.column(rows);
  const std::uint64_t* neg_inf = in.column(rows);
  const std::uint64_t* flat_index = in.column(rows);
  const std::uint64_t* number = in.column(rows);
  const std::uint64_t* text = in.column(rows, Coding::kPlain, kMaxTableId);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.mode = static_cast<ProbeMode>(mode[i]);
    row.dtype = static_cast<DType>(dtype[i]);
    row.ops = static_cast<std::uint32_t>(ops[i]);
    row.ran = ran[i] != 0;
    row.nan = unzigzag_signed(nan[i]);
    row.pos_inf = unzigzag_signed(pos_inf[i]);
    row.neg_inf = unzigzag_signed(neg_inf[i]);
    row.flat_index = unzigzag_signed(flat_index[i]);
    row.number = bits_double(number[i]);
    row.text = static_cast<StringId>(text[i]);
    batch.probes.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kProbes = list_kind<&RecordBatch::probes>(
    {.type = 19,
     .name = "probes",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = after_its_op<&RecordBatch::probes>});

}  // namespace nanhunt::trace
