// SPDX-License-Identifier: Apache-2.0
// The recorder over any writer: Recorder::open() gives it a trace file, tests give it one that is slow, blocks or
// fails. And the recorder for callers that number their names and layouts once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "nanhunt/recorder.h"
#include "nanhunt/trace.h"
#include "src/record/rows/interner.h"
#include "src/record/rows/row_builder.h"

namespace nanhunt::record {

enum class HoldAction : std::uint8_t { kHold, kKeep, kDrop, kLater };

// What is told by number costs no look-up of names and shapes. All numbers are those of this recorder.
class NumberingRecorder : public Recorder {
 public:
  // 0: "", or refused: too many, no memory, or nothing is recorded any more.
  virtual StringId number_text(std::string_view text) noexcept = 0;
  virtual LayoutId number_layout(const TensorView& tensor) noexcept = 0;
  // Numbers 1 ... texts() and 1 ... layouts() have been given out. What they name stays where it is.
  virtual std::size_t texts() const noexcept = 0;
  virtual std::size_t layouts() const noexcept = 0;
  virtual std::string_view text(StringId id) const noexcept = 0;
  virtual const KnownLayout& layout(LayoutId id) const noexcept = 0;
  virtual std::uint64_t next_seq() const noexcept = 0;  // of the next op
  // Ops from `seq` on whose outputs are known not to be finite: an op that waits for readings is not among them yet.
  virtual std::uint64_t bad_since(std::uint64_t seq) const noexcept = 0;
  virtual std::uint64_t origins() const noexcept = 0;  // ops at which badness began so far
  virtual std::uint64_t origins_that_last() const noexcept = 0;  // of these, in an optimizer or an update by the program
  // One launch was for the `count` newest ops, the first of which is `first`. Kernels that come as those of `first` are
  // told as those of the first one among them whose result is bad, once that is known.
  virtual void on_launch(std::uint64_t first, std::uint64_t count) noexcept = 0;

  // From kHold on rows stay in memory, until it is known whether anybody wants them: kKeep hands them on, kDrop forgets
  // what names values and ops. Both end the hold. All ops of it are told, so contents are not compared unasked. Where a
  // number that is not finite was made, what is held goes on to the writer after half of flush_ms, and is kept. Past
  // `held_bytes` routine rows of the hold are thinned, and what is left past that is handed on.
  // kLater ends the hold too, and decide_hold() says what becomes of it. What comes meanwhile waits behind it.
  virtual void on_hold(HoldAction action) noexcept = 0;
  // Of the oldest hold that ended with kLater: whether all of it has come, and origins() are known.
  virtual bool is_hold_due() noexcept = 0;
  virtual void decide_hold(HoldAction action) noexcept = 0;  // kKeep or kDrop
  // Events that are told while this is on belong into the hold that is due, at its end.
  virtual void add_to_due_hold(bool on) noexcept = 0;

  // Nothing is recorded in one, and no lock of the parent's may be waited for.
  virtual bool in_forked_child() const noexcept = 0;

  using Recorder::check_contents;
  using Recorder::on_mark;
  using Recorder::on_op;
  virtual void on_op(const OpEvent& event, const OpNumbers& numbers) noexcept = 0;
  virtual void on_mark(const MarkEvent& event, StringId path, LayoutId layout) noexcept = 0;
  virtual void check_contents(std::uint32_t step, const ValueView& value, LayoutId layout) noexcept = 0;
};

// As Recorder::open().
Result<std::unique_ptr<NumberingRecorder>> open_numbering_recorder(const RecorderOptions& options, RunInfo info);

// Takes the writer; only the recorder's own thread uses it from then on.
Result<std::unique_ptr<Recorder>> make_recorder(const RecorderOptions& options, std::unique_ptr<TraceWriter> writer);

}  // namespace nanhunt::record
