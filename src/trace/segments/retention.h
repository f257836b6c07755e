// SPDX-License-Identifier: Apache-2.0
// Keeps a trace within its limit by rewriting closed segments without the steps that may go. The open segment is never
// touched. What stays is RetentionOptions' business (nanhunt/trace.h); how it reads is FORMAT.md's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/trace.h"
#include "src/trace/segments/segment.h"
#include "src/trace/segments/segment_rewriter.h"
#include "src/trace/segments/segment_writer.h"

namespace nanhunt::trace {

struct ClosedSegment {
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;
  std::uint64_t first_sequence = 0, next_sequence = 0;  // of its first chunk; of the first behind it
  std::uint32_t last_step = 0;
  TableCounts tables_before, tables_after;
  bool lossy = false;      // misses chunks that could not be written: left as it is, or the loss would be hidden
  std::uint32_t level = 0;  // of the rule it was rewritten by, 0: never
};

// Which steps held something that must stay: stretches of consecutive steps, in order.
class BadSteps {
 public:
  void add(std::uint32_t step);
  // A step of a stretch, or at most `neighbourhood` away from one.
  bool near(std::uint32_t step, std::uint32_t neighbourhood) const;
  bool begins(std::uint32_t step) const;  // the first of a stretch

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> stretches_;
};

class Retention final : public StepRule {
 public:
  Retention(std::string dir, const TraceWriterOptions& options);
  void set_header(const FileHeader& header) { header_ = header; }

  std::uint64_t segment_bytes() const;  // where the writer rotates
  void note(const RecordBatch& batch);  // about to be written
  void add(const ClosedSegment& segment);
  // Rewrites closed segments until they and the open one take half of the limit, or nothing more may go. Failures are
  // not reported: the segment stays as it was, and the limit refuses rows when there is no room.
  void make_room(std::uint64_t open_bytes, const RecordBatch& tables);

  std::uint32_t newest_step() const { return newest_step_; }
  std::uint64_t closed_bytes() const { return closed_bytes_; }
  std::uint64_t room_for_open_segment() const;

  bool keeps(std::uint32_t step) const override;

 private:
  std::size_t candidates() const;  // so many of the oldest segments may be rewritten
  bool escalate();
  // False: not now. True also where the segments turned out to be damaged and stay as they are.
  bool rewrite(std::size_t begin, std::size_t end, std::uint64_t open_bytes, const RecordBatch& tables);

  const std::string dir_;
  const TraceWriterOptions options_;
  FileHeader header_;
  std::vector<ClosedSegment> closed_;
  std::uint64_t closed_bytes_ = 0;
  std::uint32_t newest_step_ = 0;
  BadSteps bad_;
  std::vector<ValueId> bad_values_;  // of the batch at hand

  // The rule at hand; it only ever gets harder.
  std::uint32_t level_ = 1;
  std::uint64_t every_ = 0;  // 0: none in between
  std::uint32_t neighbourhood_ = 0, first_steps_ = 0;
  bool first_of_stretch_only_ = false, bad_steps_go_ = false;
};

}  // namespace nanhunt::trace
