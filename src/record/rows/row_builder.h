// SPDX-License-Identifier: Apache-2.0
// Events in, rows out. Runs in the thread of the run, reads the live data, and knows nothing of queues or files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/record/measure/flush_count.h"
#include "src/record/rows/interner.h"
#include "src/record/measure/lost_updates.h"
#include "src/core/ops/op_info.h"
#include "src/record/rows/pending_rows.h"
#include "src/record/rows/value_table.h"

namespace nanhunt {
struct KernelEvent;
}

namespace nanhunt::record {

inline bool is_readable(const TensorView& t) { return t.data != nullptr && t.sizes.size() == t.strides.size(); }
// The host can read the contents, or was told what is in them.
inline bool has_contents(const ValueView& v) { return is_readable(v.tensor) || v.known != nullptr; }
inline bool can_compare(const ValueView& v) {
  return is_readable(v.tensor) || (v.known != nullptr && v.known->checksum);
}

// What was not learnt of contents that the host could not read.
struct NotRecorded {
  std::uint64_t statistics = 0;  // readings that were lost or came too late
  std::uint64_t elements = 0, flushed = 0, histograms = 0, updates = 0;
  std::uint64_t harmless = 0;    // changes that nothing watched made, and that left finite what they changed
  bool operator==(const NotRecorded&) const = default;
};

// Changes found in an attempt. A run with more writes its tensors behind the recorder's back as a habit: past this,
// contents are no longer checked.
inline constexpr std::uint32_t kMaxChangesFound = 1024;

struct RowBuilderOptions {
  // Raised to kCounts: a lifecycle needs NaN and Inf apart. Lowered to kSums: a ValueRecord holds no more.
  StatsLevel stats = StatsLevel::kSums;
  std::uint32_t max_evidence = 256, max_histograms = 1024;
  bool check_inputs = true;
  ValueTableLimits table = {};
};

// What an op names and shows, by number: one for each of the event's inputs, outputs and scalars.
struct OpNumbers {
  StringId module = 0, op = 0, call_site = 0;
  std::span<const StringId> input_slots, output_slots, scalar_names;
  std::span<const LayoutId> input_layouts, output_layouts;
  OpTraits traits;  // op_traits(event.op)
};

// Every add_ may throw std::bad_alloc; the rows are then as before the call, and the event is lost whole.
class RowBuilder {
 public:
  explicit RowBuilder(const RowBuilderOptions& options);

  bool add_op(const OpEvent& event);  // true: a floating output is not finite
  // The same without looking up the event's names and layouts, which must be those of the numbers.
  bool add_op(const OpEvent& event, const OpNumbers& numbers);
  bool began() const { return began_; }  // badness, at the op that was added last
  bool began_number() const { return began_number_; }  // NaN, or an infinite single number: no mask
  void add_mark(const MarkEvent& event);
  void add_mark(const MarkEvent& event, StringId path, LayoutId layout);
  void add_batch(const BatchEvent& event);
  void add_scaler(const ScalerEvent& event);
  void add_step(const StepEvent& event, std::int64_t wall_ns);
  void add_release(std::uint64_t storage);
  void add_health(const HealthEvent& event);
  void add_norm(const NormEvent& event);
  void add_unheard(const UnheardEvent& event);
  void add_changed(const ChangedEvent& event);
  void check(std::uint32_t step, const ValueView& value) { check(step, value, number(value.tensor)); }
  void check(std::uint32_t step, const ValueView& value, LayoutId layout);
  void add_probe(const ProbeEvent& event);
  void add_capture(const CaptureEvent& event);
  void add_note(const NoteEvent& event);
  void add_frame(const FrameEvent& event);
  void add_setup(const SetupEvent& event);
  void add_collective(const CollectiveEvent& event);
  void add_kernel(const KernelEvent& event);
  void add_experiment(const ExperimentRecord& experiment);
  void add_drop(const Dropped& dropped);

  // row_builder_known.cpp: contents that were read where the host cannot.
  const NotRecorded& not_recorded() const { return not_recorded_; }
  std::uint64_t deferred_readings() const { return deferred_readings_; }
  void note_not_taken(std::uint32_t step);  // rows of what was not taken since the last ones

  PendingRows& rows() { return rows_; }
  const PendingRows& rows() const { return rows_; }
  // Numbers for names and layouts, good for as long as the builder lives; 0: "", or refused.
  StringId number(std::string_view text) { return strings_.intern(text, rows_.batch); }
  LayoutId number(const TensorView& tensor) { return layouts_.intern(tensor, rows_.batch); }
  const StringInterner& strings() const { return strings_; }
  const LayoutInterner& layouts() const { return layouts_; }
  bool empty() const { return rows_.batch.empty(); }
  std::size_t bytes() const;  // that the rows take, about; cheap
  std::uint64_t next_seq() const { return next_seq_; }
  std::uint64_t values_made() const { return next_value_ - 1; }
  // Names and shapes that were refused a number.
  std::uint64_t refused() const { return strings_.refused() + layouts_.refused(); }
  const ValueTable& table() const { return table_; }

  // Goes on in the memory of `empty_batch`; rows().batch was moved from.
  void begin_batch(RecordBatch&& empty_batch) noexcept;
  // Drops routine rows of the batch at hand.
  Dropped thin_rows();
  // Drops its values and all rows that name values.
  Dropped drop_value_graph() noexcept;
  // Whoever tells of ops tells of all of them for a while: contents are compared where that is asked for alone.
  void trust_inputs(bool trust) { only_asked_ = trust || !checks_inputs_; }
  // From here on ops may yet be dropped, or from the batch after the one at hand.
  void begin_hold() { held_from_ = next_seq_; }
  // Drops what names values or ops, as if it had never been: its numbers and what limits the rows of a run are given
  // back. The number of the first op that was dropped.
  std::uint64_t drop_ops();
  // Rows in batches numbered `first_batch` or higher, and those of `values`, are not in the file: whatever names one
  // of these values writes it again.
  void forget_rows(std::uint64_t first_batch, std::vector<ValueId> values);

 private:
  struct Checkpoint;
  class Rollback;

  // The moment at which an event reads values.
  struct Use {
    std::uint64_t reader = 0;        // seq of the op, or of the next one
    std::uint64_t after = kNoSeq;    // last op that has run; kNoSeq: none
    std::uint32_t step = 0;
    bool old_contents = false;       // written over since: what can be read there is something else
  };
  struct Extent {
    std::int64_t begin = 0, end = 0;
  };
  Extent extent_of(const ValueInfo& value) const;
  void hide_what_overlaps(const ValueInfo& after);
  Use between_ops(std::uint32_t step) const { return {next_seq_, next_seq_ == 0 ? kNoSeq : next_seq_ - 1, step}; }
  // The value `view` shows, made known if it was not, with a row that was not dropped.
  ValueInfo& look_up(const ValueView& view, LayoutId layout, const Use& use);
  ValueInfo& make_output(const OpEvent& event, std::size_t output, LayoutId layout, FlushRule rule, const Use& use);
  OpNumbers numbers_of(const OpEvent& event);
  bool add_op(const OpEvent& event, const OpNumbers& numbers, std::uint64_t seq);
  ValueInfo& add_value(const ValueView& view, LayoutId layout, ValueInfo* base, std::uint64_t producer, const Use& use);
  // row_builder_changed.cpp: contents that changed unseen.
  bool shows_same_elements(const ValueView& view, LayoutId layout, const ValueInfo& base) const;
  std::uint64_t checksum_of(const ValueView& view, LayoutId layout) const;
  bool still_holds(const ValueView& view, ValueInfo& known, const Use& use);  // has the contents of its record
  void remember(const ValueView& view, ValueInfo& known, const Use& use);     // as they are, whoever wrote them
  void look_again(const ValueView& view, LayoutId layout, ValueInfo& known, const Use& use);
  void note_change(ValueInfo& before, ValueInfo& after, const Use& use);
  void write_row(ValueInfo& info);
  void write_again_if_dropped(ValueInfo& info);
  // Whether the op made `made` bad from inputs that were not bad in that way.
  struct Birth {
    bool inf = false, nan = false;
    bool any() const { return inf || nan; }
  };
  Birth birth_of(const OpEvent& event, bool ignores_old, const ValueInfo& made) const;
  void add_evidence(const OpEvent& event, const OpNumbers& numbers, const OpOutput& output, const ValueInfo& made,
                    Birth birth, std::uint64_t seq);
  void add_histograms(const OpEvent& event, std::uint64_t seq);
  bool shows_histogram(const ValueInfo& value, std::uint64_t seq) const;
  void add_histogram(const TensorView& tensor, const ValueInfo& value, std::uint64_t seq);
  void add_histogram(const OpEvent& event, bool of_output, std::size_t index, std::uint64_t seq);
  void finish_event() noexcept;
  // row_builder_known.cpp
  bool take_stats(const ValueView& view, TensorStats& stats) const;  // false: they are not known
  void count_reading(const ValueView& view, const Use& use);
  std::int64_t known_flushed(const OpEvent& event, FlushRule rule, std::size_t output, const TensorStats& stats);
  void add_known_evidence(const OpEvent& event, const OpNumbers& numbers, std::size_t output, const ValueInfo& made,
                          Birth birth, std::uint64_t seq);
  void add_known_histogram(const OpEvent& event, bool of_output, std::size_t index, std::uint64_t seq);
  std::optional<LostUpdates> lost_updates_of(const OpEvent& event);

  StatsLevel level_;
  std::uint32_t evidence_left_, histograms_left_;
  std::uint32_t checks_left_;  // changes that may still be found; 0: contents are not checked
  const bool checks_inputs_;
  bool only_asked_;            // they are compared where that is asked for alone
  std::uint64_t next_seq_ = 0, held_from_ = 0;
  ValueId next_value_ = 1;
  bool began_ = false;
  bool began_number_ = false;
  bool forgot_storages_ = false;  // that may live on
  std::size_t extra_bytes_ = 0;  // of rows that own memory
  StringInterner strings_;
  LayoutInterner layouts_;
  ValueTable table_;
  PendingRows rows_;
  std::vector<ValueInfo*> inputs_, outputs_;  // of the op at hand
  std::vector<FlushInput> flush_inputs_;
  std::vector<StringId> names_;      // of numbers_of()
  std::vector<LayoutId> op_layouts_;
  std::uint64_t deferred_readings_ = 0;
  NotRecorded not_recorded_, noted_;       // noted: NoteRecords tell of it
};

}  // namespace nanhunt::record
