// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/frames.h"

#include <algorithm>

#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {
namespace {

class Slicer {
 public:
  Slicer(const RecordBatch& batch, const std::function<void(const Frame&)>& on_frame)
      : batch_(batch), on_frame_(on_frame) {
    for (const RecordKind& kind : record_kinds()) counts_[kind.type - 1u] = kind.count(batch);
    counts_[kStringsType - 1u] = counts_[kLayoutsType - 1u] = 0;
  }

  void run() {
    if (fits_one_frame()) {
      for (std::size_t k = 0; k < kKindCount; ++k) frame_.rows[k] = {0, counts_[k]};
      flush();
      return;
    }
    // Even frames: 4200 rows make two of 2100, not one of 4096 and a crumb.
    const std::size_t most = *std::max_element(counts_.begin(), counts_.end());
    const std::size_t frames = std::max<std::size_t>(1, (most + kFrameRows - 1) / kFrameRows);
    row_limit_ = std::max<std::size_t>(1, (most + frames - 1) / frames);
    const bool ascending = std::is_sorted(batch_.values.begin(), batch_.values.end(),
                                          [](const ValueRecord& a, const ValueRecord& b) { return a.id < b.id; });
    if (!ascending) take_rest(kValues);  // then any value may be needed at once
    for (std::size_t i = 0; i < batch_.ops.size(); ++i) {
      for (const RecordKind& kind : record_kinds()) {
        if (kind.before == nullptr) continue;
        for (std::size_t row = next(kind); row < count(kind) && kind.before(batch_, row, batch_.ops[i]); ++row) {
          take_values_for(kind, row);
          take(kind);
        }
      }
      take_values(highest_value(batch_.ops[i]));
      take(kOps);
    }
    for (const RecordKind& kind : record_kinds()) take_rest(kind);
    flush();
  }

 private:
  std::size_t count(const RecordKind& kind) const { return counts_[kind.type - 1u]; }
  std::size_t next(const RecordKind& kind) const { return frame_.of(kind.type).end; }

  bool fits_one_frame() const {
    for (const RecordKind& kind : record_kinds()) {
      if (count(kind) != 0 && chunk_end(kind, batch_, 0, count(kind)) != count(kind)) return false;
    }
    return true;
  }

  ValueId highest_value(const OpRecord& op) const {
    return std::max(highest_of(batch_.inputs, op.first_input, op.input_count),
                    highest_of(batch_.outputs, op.first_output, op.output_count));
  }
  static ValueId highest_of(const std::vector<OpArg>& args, std::size_t first, std::size_t count) {
    ValueId highest = 0;
    const std::size_t end = std::min(first + count, args.size());  // ranges are not checked yet
    for (std::size_t i = first; i < end; ++i) highest = std::max(highest, args[i].value);
    return highest;
  }

  void take_values(ValueId up_to) {
    for (std::size_t row = next(kValues); row < count(kValues) && batch_.values[row].id <= up_to; ++row) take(kValues);
  }

  void take_values_for(const RecordKind& kind, std::size_t row) {
    if (kind.type == kMarksType) take_values(batch_.marks[row].value);
    if (kind.type == kEvidenceType) take_values(batch_.evidence[row].value);
    if (kind.type == kHistogramsType) take_values(batch_.histograms[row].value);
  }

  void take(const RecordKind& kind) {
    RowRange& rows = frame_.of(kind.type);
    const std::size_t weight = kind.weight != nullptr ? kind.weight(batch_, rows.end) : 0;
    std::size_t& total = weights_[kind.type - 1u];
    if (rows.size() == row_limit_ || (rows.size() > 0 && total + weight > kFrameBytes)) flush();
    ++rows.end;
    total += weight;
  }

  void take_rest(const RecordKind& kind) {
    for (std::size_t row = next(kind); row < count(kind); ++row) take(kind);
  }

  void flush() {
    on_frame_(frame_);
    for (RowRange& rows : frame_.rows) rows.begin = rows.end;
    weights_.fill(0);
  }

  const RecordBatch& batch_;
  const std::function<void(const Frame&)>& on_frame_;
  Frame frame_{};
  std::size_t row_limit_ = kFrameRows;
  std::array<std::size_t, kKindCount> counts_{}, weights_{};
};

}  // namespace

void for_each_frame(const RecordBatch& batch, const std::function<void(const Frame&)>& on_frame) {
  Slicer(batch, on_frame).run();
}

std::size_t chunk_end(const RecordKind& kind, const RecordBatch& batch, std::size_t begin, std::size_t end) {
  end = std::min<std::size_t>(end, begin + kFrameRows);
  if (kind.weight == nullptr) return end;
  std::size_t total = 0;
  for (std::size_t row = begin; row < end; ++row) {
    total += kind.weight(batch, row);
    if (total > kFrameBytes && row > begin) return row;
  }
  return end;
}

}  // namespace nanhunt::trace
