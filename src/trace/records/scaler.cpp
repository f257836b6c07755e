// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = ScalerRecord;
constexpr std::uint64_t kMaxAction = static_cast<std::uint64_t>(ScalerAction::kRefused);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  if (static_cast<std::uint64_t>(batch.scaler[row].action) > kMaxAction) return "its action is unknown";
  return batch.scaler[row].text > kMaxTableId ? "its text's id is above 1048575" : nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.scaler;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.micro_batch; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.action; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.optimizer; });
  write_field(out, rows, range, Coding::kPlain,
              [](const Row& row) { return (row.found_inf ? 1 : 0) | (row.dynamic ? 2 : 0); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.scale); });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.growth_tracker; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.growth_interval; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.total_norm); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.max_norm); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.growth_factor); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.backoff_factor); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.text; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* micro_batch = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* action = in.column(rows, Coding::kPlain, kMaxAction);
  const std::uint64_t* optimizer = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* bits = in.column(rows, Coding::kPlain, 3);
  const std::uint64_t* scale = in.column(rows);
  const std::uint64_t* tracker = in.column(rows, Coding::kDelta);
  const std::uint64_t* interval = in.column(rows, Coding::kDelta);
  const std::uint64_t* total_norm = in.column(rows);
  const std::uint64_t* max_norm = in.column(rows);
  const std::uint64_t* growth = in.column(rows);
  const std::uint64_t* backoff = in.column(rows);
  const std::uint64_t* text = in.column(rows, Coding::kPlain, kMaxTableId);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.micro_batch = static_cast<std::uint32_t>(micro_batch[i]);
    row.action = static_cast<ScalerAction>(action[i]);
    row.optimizer = static_cast<std::uint32_t>(optimizer[i]);
    row.found_inf = (bits[i] & 1) != 0;
    row.dynamic = (bits[i] & 2) != 0;
    row.scale = bits_double(scale[i]);
    row.growth_tracker = static_cast<std::int64_t>(tracker[i]);
    row.growth_interval = static_cast<std::int64_t>(interval[i]);
    row.total_norm = bits_double(total_norm[i]);
    row.max_norm = bits_double(max_norm[i]);
    row.growth_factor = bits_double(growth[i]);
    row.backoff_factor = bits_double(backoff[i]);
    row.text = static_cast<StringId>(text[i]);
    batch.scaler.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kScaler = list_kind<&RecordBatch::scaler>(
    {.type = 12,
     .name = "scaler",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::scaler>});

}  // namespace nanhunt::trace
