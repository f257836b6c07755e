// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = CollectiveRecord;
constexpr std::uint64_t kMaxKind = static_cast<std::uint64_t>(CollectiveKind::kBarrier);
constexpr std::uint64_t kMaxReduction = static_cast<std::uint64_t>(Reduction::kProduct);

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const Row& it = batch.collectives[row];
  if (it.group > kMaxTableId) return "its group's id is above 1048575";
  if (static_cast<std::uint64_t>(it.kind) > kMaxKind) return "its kind is unknown";
  if (static_cast<std::uint64_t>(it.reduction) > kMaxReduction) return "its reduction is unknown";
  if (it.peer < -1) return "its peer is below -1";
  if (it.ranks.size() > kMaxRowItems) return "it has more than 524288 ranks";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.collectives;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.group; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.call; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.kind; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.reduction; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return std::int64_t{row.peer} + 1; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.ranks.size(); });
  std::size_t total = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) total += rows[i].ranks.size();
  std::uint64_t* ranks = out.take(total);
  std::size_t at = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    for (const std::uint32_t rank : rows[i].ranks) ranks[at++] = rank;
  }
  out.column(ranks, total, Coding::kDelta);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* group = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* call = in.column(rows, Coding::kDelta);
  const std::uint64_t* kind = in.column(rows, Coding::kPlain, kMaxKind);
  const std::uint64_t* reduction = in.column(rows, Coding::kPlain, kMaxReduction);
  const std::uint64_t* peer = in.column(rows, Coding::kPlain, std::uint64_t{1} << 31);
  std::size_t total = 0;
  const std::uint64_t* count = in.counts(rows, total);
  const std::uint64_t* ranks = in.column(total, Coding::kDelta, ColumnReader::kU32);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    Row row;
    row.seq = seq[i];
    row.step = static_cast<std::uint32_t>(step[i]);
    row.group = static_cast<StringId>(group[i]);
    row.call = call[i];
    row.kind = static_cast<CollectiveKind>(kind[i]);
    row.reduction = static_cast<Reduction>(reduction[i]);
    row.peer = static_cast<std::int32_t>(static_cast<std::int64_t>(peer[i]) - 1);
    row.ranks.reserve(count[i]);
    for (std::uint64_t k = 0; k < count[i]; ++k) row.ranks.push_back(static_cast<std::uint32_t>(*ranks++));
    batch.collectives.push_back(std::move(row));
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) { return 4 * batch.collectives[row].ranks.size(); }

// Before its op, so that a reader knows what that is when it meets it.
bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  const std::uint64_t seq = batch.collectives[row].seq;
  return seq == kNoSeq || seq <= op.seq;
}

}  // namespace

constinit const RecordKind kCollectives = list_kind<&RecordBatch::collectives>(
    {.type = 22,
     .name = "collectives",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .weight = weight,
     .before = before});

}  // namespace nanhunt::trace
