// SPDX-License-Identifier: Apache-2.0
// The part of RowBuilder that takes over rows of a forked child, which went on from where this builder stands.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/record/rows/row_builder.h"

namespace nanhunt::record {
namespace {

// As rows that own memory are counted elsewhere.
std::size_t extra_bytes_of(const RecordBatch& rows) {
  std::size_t bytes = rows.health.size() * sizeof(HealthRecord) + rows.norms.size() * sizeof(NormRecord) +
                      rows.replays.size() * sizeof(ReplayRecord) + rows.changed.size() * sizeof(ChangedRecord) +
                      rows.notes.size() * sizeof(NoteRecord) + rows.probes.size() * sizeof(ProbeRecord);
  for (const EvidenceRecord& e : rows.evidence) bytes += sizeof e + e.operands.size() * sizeof(Operand);
  for (const HistogramRecord& h : rows.histograms) bytes += sizeof h + h.bins.size() * sizeof(h.bins[0]);
  return bytes;
}

void take_from(std::uint32_t& left, std::size_t used) {
  left -= static_cast<std::uint32_t>(std::min<std::size_t>(left, used));
}

Status does_not_fit(std::string why) {
  return {StatusCode::kUnreadable, fmt::format("the child's rows do not go on from the parent's: {}. They were not "
                                               "taken over; the run goes on",
                                               why)};
}

}  // namespace

Status RowBuilder::check_absorbable(std::span<const RecordBatch> batches) const {
  std::size_t strings = strings_.size(), layouts = layouts_.size();
  std::uint64_t next = next_seq_;
  for (const RecordBatch& rows : batches) {
    for (const StringRecord& s : rows.strings) {
      const bool same = s.id >= 1 && s.id <= strings_.size() ? strings_.text(s.id) == s.text : s.id == strings + 1;
      if (!same) return does_not_fit(fmt::format("name {} is another", s.id));
      strings = std::max<std::size_t>(strings, s.id);
    }
    for (const LayoutRecord& l : rows.layouts) {
      bool same = l.id == layouts + 1;
      if (l.id >= 1 && l.id <= layouts_.size()) {
        const KnownLayout& known = layouts_.layout(l.id);
        same = known.dtype == l.dtype && known.sizes == l.sizes && known.strides == l.strides;
      }
      if (!same) return does_not_fit(fmt::format("layout {} is another", l.id));
      layouts = std::max<std::size_t>(layouts, l.id);
    }
    for (const ValueRecord& v : rows.values) {
      if (v.layout > layouts) return does_not_fit(fmt::format("value {} has a layout without a number", v.id));
    }
    for (const OpRecord& op : rows.ops) {
      if (op.seq < next) return does_not_fit(fmt::format("op {} was there before", op.seq));
      next = op.seq + 1;
    }
  }
  return {};
}

// What of them was bad is asked of `bad_values`: a child's op may read what another batch of the child has the row of.
std::vector<std::uint64_t> RowBuilder::absorb(RecordBatch rows, std::unordered_set<ValueId>& bad_values) {
  std::vector<std::uint64_t> bad_ops;
  for (const ValueRecord& v : rows.values) {
    if (v.has_stats && v.stats.nonfinite() > 0) bad_values.insert(v.id);
  }
  for (const OpRecord& op : rows.ops) {
    const auto outputs = std::span(rows.outputs).subspan(op.first_output, op.output_count);
    if (std::ranges::any_of(outputs, [&](const OpArg& out) { return bad_values.contains(out.value); })) {
      bad_ops.push_back(op.seq);
    }
  }
  rows_.op_is_essential.assign(rows.ops.size(), 1);  // nobody computes a step again for rows that may go
  rows_.mark_is_essential.assign(rows.marks.size(), 1);
  rows_.end_first_batch.assign(rows.ends_of_life.size(), 0);
  for (const StringRecord& s : rows.strings) strings_.intern(s.text, rows_.batch);
  for (const LayoutRecord& l : rows.layouts) layouts_.intern({nullptr, l.dtype, l.sizes, l.strides}, rows_.batch);
  rows.strings = std::move(rows_.batch.strings);  // the new ones among them
  rows.layouts = std::move(rows_.batch.layouts);
  for (const ValueRecord& v : rows.values) {
    next_value_ = std::max(next_value_, v.id + 1);
    if (ValueInfo* info = table_.find_id(v.storage, v.id)) info->row_batch = rows_.number;
  }
  for (const OpRecord& op : rows.ops) next_seq_ = std::max(next_seq_, op.seq + 1);
  for (const MarkRecord& mark : rows.marks) next_seq_ = std::max(next_seq_, mark.seq);
  take_from(evidence_left_, rows.evidence.size());
  take_from(histograms_left_, rows.histograms.size());
  take_from(checks_left_, rows.changed.size());
  extra_bytes_ = extra_bytes_of(rows);
  rows_.batch = std::move(rows);
  return bad_ops;
}

}  // namespace nanhunt::record
