// SPDX-License-Identifier: Apache-2.0
// A recorder that keeps nothing: a test overrides what it listens to.
#pragma once

#include <cstdint>
#include <string>

#include "nanhunt/recorder.h"

namespace nanhunt::testing_support {

class SilentRecorder : public Recorder {
 public:
  void on_op(const OpEvent&) noexcept override {}
  void on_mark(const MarkEvent&) noexcept override {}
  void on_batch(const BatchEvent&) noexcept override {}
  void on_scaler(const ScalerEvent&) noexcept override {}
  void on_step_end(const StepEvent&) noexcept override {}
  void on_storage_released(std::uint64_t) noexcept override {}
  void on_health(const HealthEvent&) noexcept override {}
  void on_norm(const NormEvent&) noexcept override {}
  void on_unheard(const UnheardEvent&) noexcept override {}
  void on_changed(const ChangedEvent&) noexcept override {}
  void on_probe(const ProbeEvent&) noexcept override {}
  void on_capture(const CaptureEvent&) noexcept override {}
  void on_note(const NoteEvent&) noexcept override {}
  void on_frame(const FrameEvent&) noexcept override {}
  void on_setup(const SetupEvent&) noexcept override {}
  void on_collective(const CollectiveEvent&) noexcept override {}
  void on_kernel(const KernelEvent&) noexcept override {}
  void check_contents(std::uint32_t, const ValueView&) noexcept override {}
  void on_experiment(const ExperimentRecord&) noexcept override {}
  RecorderCounters counters() const override { return {}; }
  std::uint64_t anomalies() const override { return 0; }
  const std::string& attempt_dir() const override { return nowhere_; }
  Status flush() override { return {}; }
  Status close() override { return {}; }

 private:
  std::string nowhere_;
};

}  // namespace nanhunt::testing_support
