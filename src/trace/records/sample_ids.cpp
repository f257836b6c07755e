// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

const char* refuse(const RecordBatch& batch, std::size_t row) {
  return batch.sample_ids[row].sample_ids.size() > kMaxRowItems ? "it has more than 524288 samples" : nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.sample_ids;
  write_field(out, rows, range, Coding::kDelta, [](const SampleIdsRecord& row) { return row.step; });
  write_field(out, rows, range, Coding::kDelta, [](const SampleIdsRecord& row) { return row.micro_batch; });
  write_field(out, rows, range, Coding::kPlain, [](const SampleIdsRecord& row) { return row.sample_ids.size(); });
  std::size_t total = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) total += rows[i].sample_ids.size();
  std::uint64_t* ids = out.take(total);
  std::size_t at = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    for (const std::int64_t id : rows[i].sample_ids) ids[at++] = static_cast<std::uint64_t>(id);
  }
  out.column(ids, total, Coding::kDelta);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* micro_batch = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  std::size_t total = 0;
  const std::uint64_t* count = in.counts(rows, total);
  const std::uint64_t* ids = in.column(total, Coding::kDelta);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    SampleIdsRecord row{static_cast<std::uint32_t>(step[i]), static_cast<std::uint32_t>(micro_batch[i]), {}};
    row.sample_ids.reserve(count[i]);
    for (std::uint64_t k = 0; k < count[i]; ++k) row.sample_ids.push_back(static_cast<std::int64_t>(*ids++));
    batch.sample_ids.push_back(std::move(row));
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) { return 8 * batch.sample_ids[row].sample_ids.size(); }

bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.sample_ids[row].step <= op.step;
}

}  // namespace

constinit const RecordKind kSampleIds = list_kind<&RecordBatch::sample_ids>(
    {.type = 6,
     .name = "sample_ids",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .weight = weight,
     .before = before});

}  // namespace nanhunt::trace
