// SPDX-License-Identifier: Apache-2.0
#include "src/record/rows/pending_rows.h"

#include <algorithm>
#include <unordered_set>

#include "src/trace/record_kind.h"

namespace nanhunt::record {
namespace {

// Values that essential ops, marks, evidence and histograms name, and bad values.
std::unordered_set<ValueId> values_to_keep(const PendingRows& rows) {
  const RecordBatch& b = rows.batch;
  std::unordered_set<ValueId> keep;
  for (std::size_t i = 0; i < b.ops.size(); ++i) {
    if (rows.op_is_essential[i] == 0) continue;
    const OpRecord& op = b.ops[i];
    for (std::uint32_t k = 0; k < op.input_count; ++k) keep.insert(b.inputs[op.first_input + k].value);
    for (std::uint32_t k = 0; k < op.output_count; ++k) keep.insert(b.outputs[op.first_output + k].value);
  }
  for (std::size_t i = 0; i < b.marks.size(); ++i) {
    if (rows.mark_is_essential[i] != 0) keep.insert(b.marks[i].value);
  }
  for (const EvidenceRecord& e : b.evidence) {
    keep.insert(e.value);
    for (const Operand& o : e.operands) keep.insert(o.value);
  }
  for (const HistogramRecord& h : b.histograms) keep.insert(h.value);
  for (const ChangedRecord& c : b.changed) keep.insert({c.before, c.after});
  for (const ValueRecord& v : b.values) {
    if (v.has_stats && v.stats.nonfinite() > 0) keep.insert(v.id);
  }
  // A base comes before its views.
  for (auto it = b.values.rbegin(); it != b.values.rend(); ++it) {
    if (it->base != 0 && keep.contains(it->id)) keep.insert(it->base);
  }
  return keep;
}

}  // namespace

void PendingRows::clear() {
  batch.clear();
  op_is_essential.clear();
  mark_is_essential.clear();
  end_first_batch.clear();
}

bool PendingRows::names_ops() const {
  const RecordBatch& b = batch;
  return !(b.ops.empty() && b.values.empty() && b.marks.empty() && b.evidence.empty() && b.histograms.empty() &&
           b.changed.empty() && b.collectives.empty() && b.kernels.empty() && b.probes.empty() && b.captures.empty());
}

void Dropped::add(const Dropped& more) {
  ops += more.ops;
  values += more.values;
  other += more.other;
}

Dropped thin(PendingRows& rows, std::vector<ValueRecord>& dropped_values) {
  RecordBatch& b = rows.batch;
  const std::unordered_set<ValueId> keep = values_to_keep(rows);
  std::unordered_set<std::uint64_t> kept_storages;
  for (const ValueRecord& v : b.values) {
    if (keep.contains(v.id)) kept_storages.insert(v.storage);
  }
  Dropped dropped;
  dropped_values.reserve(dropped_values.size() + b.values.size());

  // Everything that allocates is done: from here on the rows change and nothing may throw.
  std::size_t ops = 0, marks = 0, ends = 0;
  std::uint32_t inputs = 0, outputs = 0, scalars = 0;
  for (std::size_t i = 0; i < b.ops.size(); ++i) {
    if (rows.op_is_essential[i] == 0) {
      ++dropped.ops;
      continue;
    }
    OpRecord op = b.ops[i];
    // Argument rows only ever move towards the front, so they are read before they are overwritten.
    std::copy_n(b.inputs.begin() + op.first_input, op.input_count, b.inputs.begin() + inputs);
    std::copy_n(b.outputs.begin() + op.first_output, op.output_count, b.outputs.begin() + outputs);
    std::copy_n(b.scalars.begin() + op.first_scalar, op.scalar_count, b.scalars.begin() + scalars);
    op.first_input = inputs;
    op.first_output = outputs;
    op.first_scalar = scalars;
    inputs += op.input_count;
    outputs += op.output_count;
    scalars += op.scalar_count;
    b.ops[ops] = op;
    rows.op_is_essential[ops++] = 1;
  }
  b.ops.resize(ops);
  rows.op_is_essential.resize(ops);
  b.inputs.resize(inputs);
  b.outputs.resize(outputs);
  b.scalars.resize(scalars);

  for (std::size_t i = 0; i < b.marks.size(); ++i) {
    if (rows.mark_is_essential[i] == 0) {
      ++dropped.other;
      continue;
    }
    b.marks[marks] = b.marks[i];
    rows.mark_is_essential[marks++] = 1;
  }
  b.marks.resize(marks);

  std::size_t values = 0;
  for (std::size_t i = 0; i < b.values.size(); ++i) {
    if (keep.contains(b.values[i].id)) {
      if (values != i) b.values[values] = std::move(b.values[i]);
      ++values;
    } else {
      ++dropped.values;
      dropped_values.push_back(std::move(b.values[i]));
    }
  }
  b.values.resize(values);

  for (std::size_t i = 0; i < b.ends_of_life.size(); ++i) {
    const std::uint64_t storage = b.ends_of_life[i].storage;
    const bool stays = rows.end_first_batch[i] < rows.number || kept_storages.contains(storage);
    if (!stays) continue;
    b.ends_of_life[ends] = b.ends_of_life[i];
    rows.end_first_batch[ends++] = rows.end_first_batch[i];
  }
  b.ends_of_life.resize(ends);
  rows.end_first_batch.resize(ends);
  return dropped;
}

Dropped drop_value_graph(PendingRows& rows) noexcept {
  RecordBatch& b = rows.batch;
  const Dropped dropped{b.ops.size(), b.values.size(),
                        b.marks.size() + b.evidence.size() + b.histograms.size() + b.changed.size()};
  b.values.clear();
  b.ops.clear();
  b.inputs.clear();
  b.outputs.clear();
  b.scalars.clear();
  b.marks.clear();
  b.evidence.clear();
  b.histograms.clear();
  b.changed.clear();
  rows.op_is_essential.clear();
  rows.mark_is_essential.clear();
  return dropped;
}

void drop_ops(PendingRows& rows, std::uint64_t next_seq) noexcept {
  (void)drop_value_graph(rows);
  RecordBatch& b = rows.batch;
  b.collectives.clear();
  b.kernels.clear();
  b.probes.clear();
  b.captures.clear();
  const auto before = [&](auto& list, auto seq) {
    for (auto& row : list) row.*seq = std::min(row.*seq, next_seq);
  };
  before(b.scaler, &ScalerRecord::seq);
  before(b.steps, &StepRecord::end_seq);
  before(b.health, &HealthRecord::seq);
  before(b.norms, &NormRecord::seq);
  before(b.unheard, &UnheardRecord::seq);
  before(b.notes, &NoteRecord::seq);
  before(b.frames, &FrameRecord::seq);
  before(b.setup, &SetupRecord::seq);
  before(b.ends_of_life, &EndOfLifeRecord::seq);
  std::size_t ends = 0;
  for (std::size_t i = 0; i < b.ends_of_life.size(); ++i) {
    if (rows.end_first_batch[i] >= rows.number) continue;
    b.ends_of_life[ends] = b.ends_of_life[i];
    rows.end_first_batch[ends++] = rows.end_first_batch[i];
  }
  b.ends_of_life.erase(b.ends_of_life.begin() + static_cast<std::ptrdiff_t>(ends), b.ends_of_life.end());
  rows.end_first_batch.erase(rows.end_first_batch.begin() + static_cast<std::ptrdiff_t>(ends), rows.end_first_batch.end());
}

Dropped rows_of(const RecordBatch& b) {
  std::size_t all = 0;
  for (const trace::RecordKind& kind : trace::record_kinds()) all += kind.count(b);
  const std::size_t not_events = b.strings.size() + b.layouts.size() + b.drops.size() + b.retired.size();
  return {b.ops.size(), b.values.size(), all - not_events - b.ops.size() - b.values.size()};
}

}  // namespace nanhunt::record
