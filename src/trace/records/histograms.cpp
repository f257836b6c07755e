// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = HistogramRecord;

// fp64 subnormals reach 2^-1074, its largest numbers 2^1023.
constexpr std::size_t kMaxBins = 2098;
constexpr std::uint64_t kMaxZigzagExponent = 2148;

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const Row& histogram = batch.histograms[row];
  if (histogram.bins.size() > kMaxBins) return "it has more than 2098 bins";
  return zigzag_signed(histogram.min_exponent) > kMaxZigzagExponent ? "its first exponent is outside -1074..1074"
                                                                    : nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.histograms;
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const Row& row) { return row.value; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return zigzag_signed(row.min_exponent); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.bins.size(); });
  std::size_t total = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) total += rows[i].bins.size();
  std::uint64_t* bins = out.take(total);
  std::size_t at = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    for (const std::int64_t count : rows[i].bins) bins[at++] = static_cast<std::uint64_t>(count);
  }
  out.column(bins, total, Coding::kPlain);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* value = in.column(rows, Coding::kDelta);
  const std::uint64_t* min_exponent = in.column(rows, Coding::kPlain, kMaxZigzagExponent);
  std::size_t total = 0;
  const std::uint64_t* count = in.counts(rows, total);
  const std::uint64_t* bins = in.column(total, Coding::kPlain);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    if (count[i] > kMaxBins) return "a histogram has too many bins";
    Row row{seq[i], value[i], static_cast<std::int32_t>(unzigzag_signed(min_exponent[i])), {}};
    row.bins.reserve(count[i]);
    for (std::uint64_t k = 0; k < count[i]; ++k) row.bins.push_back(static_cast<std::int64_t>(*bins++));
    batch.histograms.push_back(std::move(row));
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) { return 8 * batch.histograms[row].bins.size(); }

}  // namespace

constinit const RecordKind kHistograms = list_kind<&RecordBatch::histograms>(
    {.type = kHistogramsType,
     .name = "histograms",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .weight = weight,
     .before = after_its_op<&RecordBatch::histograms>});

}  // namespace nanhunt::trace
