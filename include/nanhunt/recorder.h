// SPDX-License-Identifier: Apache-2.0
// The recorder: turns events into records and hands them to a writer thread. It never throws into,
// prints into or changes the run; what it cannot keep it counts. Events come from one thread at a time; what comes late
// from any, also meanwhile.
//
//   auto recorder = nanhunt::Recorder::open({.run_dir = "run"}, info);
//   if (!recorder) return recorder.status();
//   (*recorder)->on_op(event);
//   Status end = (*recorder)->close();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "nanhunt/event.h"
#include "nanhunt/status.h"
#include "nanhunt/trace.h"

namespace nanhunt {

enum class OnFull : std::uint8_t { kDrop, kWait };

struct RecorderOptions {
  std::string run_dir = {};
  StatsLevel stats = StatsLevel::kSums;   // of each output value
  OnFull on_full = OnFull::kWait;         // kWait loses no row; kDrop counts those that it drops
  std::size_t queue_bytes = 64u << 20;    // bound on rows waiting for the writer
  int flush_ms = 1000;                    // a kill loses at most this much, plus the chunk being written
  std::uint32_t max_evidence = 256;       // element evidence rows in an attempt
  std::uint32_t max_histograms = 1024;    // histogram rows in an attempt
  // Compares what an op or a mark reads with what was recorded of it, by a checksum: contents that nothing seen wrote
  // (a flipped bit, a stray write, a kernel that no hook saw) become a ChangedRecord. At most 1024 in an attempt.
  bool check_inputs = true;
  // Events that wait for readings (ValueView::late): past so many bytes of them, or past so many ends of steps, what
  // has not come is given up and told as unknown.
  std::size_t deferred_bytes = 64u << 20;
  std::uint32_t deferred_steps = 8;
  std::size_t held_bytes = 64u << 20;  // of rows that wait for whether they are wanted: nanhunt_recorder_hold()
  TraceWriterOptions writer = {};
};

struct RecorderCounters {
  std::uint64_t ops = 0, values = 0, marks = 0;
  std::uint64_t dropped_ops = 0, dropped_values = 0, dropped_other = 0;
  // Readings of contents where the host cannot read (ValueView::late, OpEvent::late): told of, and not there.
  std::uint64_t deferred_readings = 0, deferred_lost = 0;
  std::uint64_t write_errors = 0;
  std::string first_write_error = {};  // empty: none
};

// Kernels of one name that a GPU ran for one op, added up. It may be told steps after the op: times come late.
struct KernelEvent {
  std::uint64_t seq = kNoSeq;    // of the op; kNoSeq: of no single op
  std::uint32_t step = 0;        // in which they were launched
  std::string_view name;         // empty: the driver did not say
  bool own = false;              // nanhunt launched them, to watch the op or for itself
  std::uint64_t count = 0;
  std::uint64_t timed = 0;       // of `count`, those whose times are known
  std::int64_t duration_ns = 0;  // of the timed ones together, on the device
};

class Recorder {
 public:
  static Result<std::unique_ptr<Recorder>> open(const RecorderOptions& options, RunInfo info);
  virtual ~Recorder() = default;  // closes if close() was not called

  virtual void on_op(const OpEvent& event) noexcept = 0;
  virtual void on_mark(const MarkEvent& event) noexcept = 0;
  virtual void on_batch(const BatchEvent& event) noexcept = 0;
  virtual void on_scaler(const ScalerEvent& event) noexcept = 0;
  virtual void on_step_end(const StepEvent& event) noexcept = 0;
  virtual void on_storage_released(std::uint64_t storage) noexcept = 0;
  virtual void on_health(const HealthEvent& event) noexcept = 0;
  virtual void on_norm(const NormEvent& event) noexcept = 0;
  virtual void on_unheard(const UnheardEvent& event) noexcept = 0;
  virtual void on_changed(const ChangedEvent& event) noexcept = 0;
  virtual void on_probe(const ProbeEvent& event) noexcept = 0;
  virtual void on_capture(const CaptureEvent& event) noexcept = 0;
  virtual void on_note(const NoteEvent& event) noexcept = 0;
  virtual void on_frame(const FrameEvent& event) noexcept = 0;
  virtual void on_setup(const SetupEvent& event) noexcept = 0;
  virtual void on_collective(const CollectiveEvent& event) noexcept = 0;
  virtual void on_kernel(const KernelEvent& event) noexcept = 0;
  // Compares contents with their record, where there is one (check_inputs): for what an op will write over, whose old
  // contents no OpEvent can show any more. Writes nothing where they are the same.
  virtual void check_contents(std::uint32_t step, const ValueView& value) noexcept = 0;
  virtual void on_experiment(const ExperimentRecord& experiment) noexcept = 0;

  // Contents that are read where the host cannot, and what was read of them comes later:
  //
  //   ValueView out = ...;                         // tensor.data is nullptr
  //   out.late = ++number;
  //   recorder.on_op(event);                       // names `out`; it waits
  //   ...                                          // steps later, in any order, from any thread:
  //   recorder.on_deferred_contents(number, contents); // or on_deferred_lost(number)
  //
  // Numbers are the caller's, not 0; views of one event may share one. One that nothing waits for (any more) is
  // ignored. Events stay in order: one that waits holds up those after it, within deferred_bytes and deferred_steps.
  virtual void on_deferred_contents(std::uint64_t /*number*/, const KnownContents& /*contents*/) noexcept {}
  virtual void on_deferred_evidence(std::uint64_t /*number*/, const DeferredEvidence& /*findings*/) noexcept {}
  virtual void on_deferred_lost(std::uint64_t /*number*/) noexcept {}
  // Contents of which only statistics are known.
  void on_deferred_stats(std::uint64_t number, const TensorStats& stats) noexcept;

  virtual RecorderCounters counters() const = 0;
  virtual std::uint64_t anomalies() const = 0;  // ops whose outputs were not finite so far
  virtual const std::string& attempt_dir() const = 0;
  // Everything recorded so far is in the file when it returns, but for events that wait for readings, and those after
  // them.
  virtual Status flush() = 0;
  virtual Status close() = 0;  // gives up what has not come
};

}  // namespace nanhunt
