// SPDX-License-Identifier: Apache-2.0
// The part of RowBuilder for contents that were read where the host cannot: what it computes of others it is told of
// these.
#include <algorithm>

#include "src/record/rows/rollback.h"

namespace nanhunt::record {

bool RowBuilder::take_stats(const ValueView& view, TensorStats& stats) const {
  if (is_readable(view.tensor)) {
    stats = compute_stats(view.tensor, level_);
    return true;
  }
  const KnownContents& known = *view.known;
  if (known.were_finite) {
    stats = TensorStats{};
    stats.numel = view.tensor.numel();
    return true;
  }
  // Else counts are the least that a row says, and of all its elements.
  if (!known.has_stats || known.stats.level < StatsLevel::kCounts || known.stats.numel != view.tensor.numel())
    return false;
  stats = known.stats;
  stats.level = std::min(stats.level, level_);
  stats.what_if = {};
  stats.histogram_min_exponent = 0;
  stats.histogram.clear();
  if (stats.level < StatsLevel::kSums) stats.sum = stats.sum_sq = 0;
  return true;
}

void RowBuilder::count_reading(const ValueView& view, const Use& use) {
  if (view.late == 0 || use.old_contents || is_readable(view.tensor)) return;
  ++deferred_readings_;
  if (view.known == nullptr || !view.known->has_stats) ++not_recorded_.statistics;
}

std::int64_t RowBuilder::known_flushed(const OpEvent& event, FlushRule rule, std::size_t output,
                                       const TensorStats& stats) {
  const DType dtype = event.outputs[output].value.tensor.dtype;
  const std::int64_t flushed = settle_flushed(rule, flush_inputs_, event.scalars, dtype, stats);
  if (flushed != kNeedsElements) return flushed;
  if (output == 0 && event.findings != nullptr && event.findings->flushed >= 0) return event.findings->flushed;
  ++not_recorded_.flushed;
  return -1;
}

void RowBuilder::add_known_evidence(const OpEvent& event, const OpNumbers& numbers, std::size_t output,
                                    const ValueInfo& made, Birth birth, std::uint64_t seq) {
  for (const bool nan : {false, true}) {
    if (!(nan ? birth.nan : birth.inf) || evidence_left_ == 0) continue;
    const DeferredElement* found = nullptr;
    if (event.findings != nullptr) {
      for (const DeferredElement& e : event.findings->elements) {
        if (found == nullptr && e.output == output && e.nan == nan && e.flat_index >= 0) found = &e;
      }
    }
    if (found == nullptr) {
      ++not_recorded_.elements;
      continue;
    }
    EvidenceRecord row;
    row.seq = seq;
    row.value = made.record.id;
    row.flat_index = found->flat_index;
    row.number = found->number;
    for (const DeferredOperand& operand : found->operands) {
      if (operand.input >= event.inputs.size()) continue;
      row.operands.push_back({numbers.input_slots[operand.input], inputs_[operand.input]->record.id, operand.flat_index,
                              operand.number});
    }
    extra_bytes_ += sizeof(EvidenceRecord) + row.operands.size() * sizeof(Operand);
    rows_.batch.evidence.push_back(std::move(row));
    --evidence_left_;
  }
}

void RowBuilder::add_known_histogram(const OpEvent& event, bool of_output, std::size_t index, std::uint64_t seq) {
  const ValueInfo& value = of_output ? *outputs_[index] : *inputs_[index];
  if (event.findings != nullptr) {
    for (const DeferredHistogram& h : event.findings->histograms) {
      if (h.of_output != of_output || h.index != index) continue;
      extra_bytes_ += sizeof(HistogramRecord) + h.bins.size_bytes();
      rows_.batch.histograms.push_back({seq, value.record.id, h.min_exponent, {h.bins.begin(), h.bins.end()}});
      --histograms_left_;
      return;
    }
  }
  ++not_recorded_.histograms;
}

std::optional<LostUpdates> RowBuilder::lost_updates_of(const OpEvent& event) {
  if (auto counted = count_lost_updates(event)) return counted;
  const bool late = event.late != 0 || (!event.outputs.empty() && event.outputs[0].value.late != 0);
  if (!late || !deferred_update(event)) return std::nullopt;
  if (event.findings == nullptr || event.findings->updates < 0) {
    ++not_recorded_.updates;
    return std::nullopt;
  }
  return LostUpdates{event.findings->updates, event.findings->lost_updates, event.findings->lost_update_share};
}

void RowBuilder::add_frame(const FrameEvent& event) {
  Rollback rollback(*this);
  FrameRecord row;
  row.seq = next_seq_;
  row.site = strings_.intern(event.site, rows_.batch);
  row.depth = event.depth;
  row.file = strings_.intern(event.file, rows_.batch);
  row.line = event.line;
  row.function = strings_.intern(event.function, rows_.batch);
  row.first_line = event.first_line;
  row.code = strings_.intern(event.code, rows_.batch);
  rows_.batch.frames.push_back(row);
  extra_bytes_ += sizeof row;
  rollback.commit();
}

void RowBuilder::add_setup(const SetupEvent& event) {
  Rollback rollback(*this);
  SetupRecord row;
  row.seq = next_seq_;
  row.step = event.step;
  row.fact = event.fact;
  row.path = strings_.intern(event.path, rows_.batch);
  row.site = strings_.intern(event.site, rows_.batch);
  row.dtype = event.dtype;
  row.number = event.number;
  row.text = strings_.intern(event.text, rows_.batch);
  rows_.batch.setup.push_back(row);
  extra_bytes_ += sizeof row;
  rollback.commit();
}

void RowBuilder::note_not_taken(std::uint32_t step) {
  const NotRecorded now = not_recorded_;
  if (now == noted_) return;
  // What throws in between leaves notes that are told again.
  const auto note = [&](std::uint64_t count, std::uint64_t noted, std::string_view what) {
    if (count == noted) return;
    rows_.batch.notes.push_back({next_seq_, step, strings_.intern(what, rows_.batch), count});
    extra_bytes_ += sizeof(NoteRecord);
  };
  note(now.statistics, noted_.statistics, "not taken on a device: statistics that were lost or came too late");
  note(now.elements, noted_.elements, "not taken on a device: first bad elements and what they were made from");
  note(now.flushed, noted_.flushed, "not taken on a device: how many values were lost to zero");
  note(now.histograms, noted_.histograms, "not taken on a device: histograms of ops where bad numbers began");
  note(now.updates, noted_.updates, "not taken on a device: updates that changed nothing");
  note(now.harmless, noted_.harmless, "writes that nothing watched made, which left finite what they wrote");
  noted_ = now;
}

}  // namespace nanhunt::record
