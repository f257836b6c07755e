// SPDX-License-Identifier: Apache-2.0
// The rows of a batch in the order in which things happened, for whoever follows a run: one order for all.
//
// Rows of a kind keep the order that they have. Between kinds, at one moment:
//  - records that were lost or retired first: what follows may hang on them;
//  - what watching left (changes, norms, unheard steps, health) before the marks and the end of its step: it may be why;
//  - marks, then what a scaler did, before the end of their step, and all before a release: what is released cannot be
//    marked any more;
//  - sample ids, which carry no sequence number, before the first op or mark of their micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::trace {

// `visitor.on(row)` is called for ops, marks, steps, sample_ids, ends_of_life, drops, retired, scaler, changed, norms,
// unheard steps, health and kernels. Tables, values and what is about an op by its number are not in time.
template <typename Visitor>
class InOrder {
 public:
  InOrder(const RecordBatch& batch, Visitor& visitor) : batch_(batch), visitor_(visitor) {}

  void run() {
    for (const OpRecord& op : batch_.ops) {
      advance(op.seq);
      take_samples(op.step, op.micro_batch);
      visitor_.on(op);
    }
    for (const KernelRecord& kernel : batch_.kernels) visitor_.on(kernel);  // none stands before its op
    advance(kEnd);
    take_samples(kEndStep, kEndStep);
  }

 private:
  static constexpr std::uint64_t kEnd = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint32_t kEndStep = std::numeric_limits<std::uint32_t>::max();

  template <typename Row>
  struct Rows {
    const std::vector<Row>& rows;
    std::size_t next = 0;

    const Row* ahead() const { return next < rows.size() ? &rows[next] : nullptr; }
    const Row* up_to(std::uint64_t seq) const {
      const Row* row = ahead();
      return row != nullptr && moment(*row) <= seq ? row : nullptr;
    }
    static std::uint64_t moment(const StepRecord& row) { return row.end_seq; }
    static std::uint64_t moment(const auto& row) { return row.seq; }
  };

  template <typename Row>
  void take(Rows<Row>& list) {
    visitor_.on(list.rows[list.next++]);
  }
  template <typename Row>
  bool take_watched(Rows<Row>& list, std::uint64_t seq, std::uint32_t step) {
    const Row* row = list.ahead();
    if (row == nullptr || row->seq > seq || (row->seq == seq && row->step > step)) return false;
    take(list);
    return true;
  }
  // One row of what watching left before (seq, step). False: nothing more.
  bool take_watching(std::uint64_t seq, std::uint32_t step) {
    return take_watched(changed_, seq, step) || take_watched(norms_, seq, step) ||
           take_watched(unheard_, seq, step) || take_watched(health_, seq, step);
  }

  // Everything that happened before op `seq`.
  void advance(std::uint64_t seq) {
    for (;;) {
      while (retired_.up_to(seq) != nullptr) take(retired_);
      const MarkRecord* mark = marks_.up_to(seq);
      const StepRecord* step = steps_.up_to(seq);
      if (mark != nullptr && step != nullptr) {
        const bool mark_first = mark->seq < step->end_seq || (mark->seq == step->end_seq && mark->step <= step->step);
        if (mark_first) {
          step = nullptr;
        } else {
          mark = nullptr;
        }
      }
      const ScalerRecord* scaled = scaler_.up_to(seq);
      const bool scaled_later =
          scaled != nullptr &&
          ((mark != nullptr && mark->seq <= scaled->seq) ||
           (step != nullptr &&
            (step->end_seq < scaled->seq || (step->end_seq == scaled->seq && step->step < scaled->step))));
      if (scaled != nullptr && !scaled_later) {
        take(scaler_);
        continue;
      }
      const bool watched = mark != nullptr   ? take_watching(mark->seq, mark->step)
                           : step != nullptr ? take_watching(step->end_seq, step->step)
                                             : take_watching(seq, kEndStep);
      if (watched) continue;
      const std::uint64_t next = mark != nullptr ? mark->seq : step != nullptr ? step->end_seq : kEnd;
      const EndOfLifeRecord* end = ends_.up_to(seq);
      if (const DropRecord* drop = drops_.up_to(seq); drop != nullptr && drop->seq <= next) {
        take(drops_);
      } else if (end != nullptr && end->seq < next) {
        take(ends_);
      } else if (mark != nullptr) {
        take_samples(mark->step, mark->micro_batch);
        take(marks_);
      } else if (step != nullptr) {
        take(steps_);
      } else if (end != nullptr) {
        take(ends_);
      } else {
        return;
      }
    }
  }

  void take_samples(std::uint32_t step, std::uint32_t micro_batch) {
    while (const SampleIdsRecord* row = samples_.ahead()) {
      if (row->step > step || (row->step == step && row->micro_batch > micro_batch)) return;
      take(samples_);
    }
  }

  const RecordBatch& batch_;
  Visitor& visitor_;
  Rows<MarkRecord> marks_{batch_.marks};
  Rows<StepRecord> steps_{batch_.steps};
  Rows<SampleIdsRecord> samples_{batch_.sample_ids};
  Rows<EndOfLifeRecord> ends_{batch_.ends_of_life};
  Rows<DropRecord> drops_{batch_.drops};
  Rows<RetiredRecord> retired_{batch_.retired};
  Rows<ScalerRecord> scaler_{batch_.scaler};
  Rows<ChangedRecord> changed_{batch_.changed};
  Rows<NormRecord> norms_{batch_.norms};
  Rows<UnheardRecord> unheard_{batch_.unheard};
  Rows<HealthRecord> health_{batch_.health};
};

template <typename Visitor>
void for_each_in_order(const RecordBatch& batch, Visitor& visitor) {
  InOrder<Visitor>(batch, visitor).run();
}

}  // namespace nanhunt::trace
