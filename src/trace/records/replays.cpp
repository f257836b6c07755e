// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = ReplayRecord;
constexpr std::uint64_t kMaxTrigger = static_cast<std::uint64_t>(ReplayTrigger::kUser);
constexpr std::uint64_t kMaxResult = static_cast<std::uint64_t>(ReplayResult::kRefused);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& rows = batch.replays;
  if (static_cast<std::uint64_t>(rows[row].trigger) > kMaxTrigger) return "its trigger is unknown";
  if (static_cast<std::uint64_t>(rows[row].result) > kMaxResult) return "its result is unknown";
  if (rows[row].text > kMaxTableId) return "its text's id is above 1048575";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.replays;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.trigger; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.result; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.text; });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* trigger = in.column(rows, Coding::kPlain, kMaxTrigger);
  const std::uint64_t* result = in.column(rows, Coding::kPlain, kMaxResult);
  const std::uint64_t* text = in.column(rows, Coding::kPlain, kMaxTableId);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.trigger = static_cast<ReplayTrigger>(trigger[i]);
    row.result = static_cast<ReplayResult>(result[i]);
    row.text = static_cast<StringId>(text[i]);
    batch.replays.push_back(row);
  }
  return nullptr;
}

}  // namespace

constinit const RecordKind kReplays = list_kind<&RecordBatch::replays>(
    {.type = 17,
     .name = "replays",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .before = up_to_op<&RecordBatch::replays>});

}  // namespace nanhunt::trace
