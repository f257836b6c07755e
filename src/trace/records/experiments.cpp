// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

using Row = ExperimentRecord;

void write_texts(const RecordBatch& batch, RowRange range, std::string Row::*member, ColumnWriter& out) {
  std::vector<const std::string*> texts;
  for (std::size_t i = range.begin; i < range.end; ++i) texts.push_back(&(batch.experiments[i].*member));
  out.texts(texts);
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const auto& rows = batch.experiments;
  write_texts(batch, range, &Row::fix, out);
  write_texts(batch, range, &Row::description, out);
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.step; });
  write_field(out, rows, range, Coding::kPlain,
              [](const Row& row) { return (row.finite ? 1 : 0) | (row.verified ? 2 : 0); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return row.further_steps; });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.loss_before); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.loss_after); });
  write_field(out, rows, range, Coding::kPlain, [](const Row& row) { return double_bits(row.update_factor); });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  std::vector<std::string> fixes, descriptions;
  in.texts(rows, fixes);
  in.texts(rows, descriptions);
  const std::uint64_t* step = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* bits = in.column(rows, Coding::kPlain, 3);
  const std::uint64_t* further_steps = in.column(rows, Coding::kPlain, ColumnReader::kU32);
  const std::uint64_t* loss_before = in.column(rows);
  const std::uint64_t* loss_after = in.column(rows);
  const std::uint64_t* update_factor = in.column(rows);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.experiments.push_back({std::move(fixes[i]), std::move(descriptions[i]), static_cast<std::uint32_t>(step[i]),
                                 (bits[i] & 1) != 0, static_cast<std::uint32_t>(further_steps[i]),
                                 bits_double(loss_before[i]), bits_double(loss_after[i]), bits_double(update_factor[i]),
                                 (bits[i] & 2) != 0});
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) {
  const Row& experiment = batch.experiments[row];
  return std::min(experiment.fix.size(), kMaxTextBytes) + std::min(experiment.description.size(), kMaxTextBytes);
}

}  // namespace

constinit const RecordKind kExperiments = list_kind<&RecordBatch::experiments>(
    {.type = 10, .name = "experiments", .encode = encode, .decode = decode, .weight = weight});

}  // namespace nanhunt::trace
