// SPDX-License-Identifier: Apache-2.0
#include "src/trace/cells.h"
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const auto& operands = batch.evidence[row].operands;
  if (operands.size() > kMaxRowItems) return "it has more than 524288 operands";
  for (const Operand& operand : operands) {
    if (operand.slot > kMaxTableId) return "a string id is above 1048575";
  }
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.evidence;
  write_field(out, rows, range, Coding::kDelta, [](const EvidenceRecord& row) { return row.seq; });
  write_field(out, rows, range, Coding::kDelta, [](const EvidenceRecord& row) { return row.value; });
  write_field(out, rows, range, Coding::kPlain,
              [](const EvidenceRecord& row) { return zigzag_signed(row.flat_index); });
  write_field(out, rows, range, Coding::kPlain, [](const EvidenceRecord& row) { return double_bits(row.number); });
  write_field(out, rows, range, Coding::kPlain, [](const EvidenceRecord& row) { return row.operands.size(); });
  std::vector<Operand> operands;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    operands.insert(operands.end(), rows[i].operands.begin(), rows[i].operands.end());
  }
  const RowRange all{0, operands.size()};
  write_field(out, operands, all, Coding::kPlain, [](const Operand& item) { return item.slot; });
  write_field(out, operands, all, Coding::kDelta, [](const Operand& item) { return item.value; });
  write_field(out, operands, all, Coding::kPlain, [](const Operand& item) { return zigzag_signed(item.flat_index); });
  write_field(out, operands, all, Coding::kPlain, [](const Operand& item) { return double_bits(item.number); });
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* value = in.column(rows, Coding::kDelta);
  const std::uint64_t* flat_index = in.column(rows);
  const std::uint64_t* number = in.column(rows);
  std::size_t total = 0;
  const std::uint64_t* count = in.counts(rows, total);
  const std::uint64_t* slot = in.column(total, Coding::kPlain, kMaxTableId);
  const std::uint64_t* operand_value = in.column(total, Coding::kDelta);
  const std::uint64_t* operand_index = in.column(total);
  const std::uint64_t* operand_number = in.column(total);
  if (!in.finished()) return kBadColumns;
  std::size_t next = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    EvidenceRecord row{seq[i], value[i], unzigzag_signed(flat_index[i]), bits_double(number[i]), {}};
    row.operands.reserve(count[i]);
    for (std::uint64_t k = 0; k < count[i]; ++k, ++next) {
      row.operands.push_back({static_cast<StringId>(slot[next]), operand_value[next],
                              unzigzag_signed(operand_index[next]), bits_double(operand_number[next])});
    }
    batch.evidence.push_back(std::move(row));
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) { return 28 * batch.evidence[row].operands.size(); }

void show(const RecordBatch& batch, std::size_t row, const TraceNames& names, Cells& cells) {
  const EvidenceRecord& evidence = batch.evidence[row];
  cells.seq("seq", evidence.seq);
  show_op(cells, names, evidence.seq, /*with_step=*/true);
  cells.id("value", evidence.value);
  cells.integer("flat_index", evidence.flat_index);
  cells.number("number", evidence.number);
  cells.list("operands", evidence.operands.size(), [&](Cells& item, std::size_t i) {
    const Operand operand = at_or_empty<Operand>(evidence.operands, i);
    item.own_text("slot", names.text(operand.slot));
    item.id("value", operand.value);
    item.integer("flat_index", operand.flat_index);
    item.number("number", operand.number);
  });
}

}  // namespace

constinit const RecordKind kEvidence = list_kind<&RecordBatch::evidence>(
    {.type = kEvidenceType,
     .name = "evidence",
     .retires = Retires::kWithOp,
     .counted = "evidence",
     .encode = encode,
     .decode = decode,
     .refuse = refuse,
     .weight = weight,
     .before = after_its_op<&RecordBatch::evidence>,
     .show = show});

}  // namespace nanhunt::trace
