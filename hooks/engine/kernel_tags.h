// SPDX-License-Identifier: Apache-2.0
// Says to whoever watches kernels which launches belong to which op, and which are nanhunt's own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/recorder.h"
#include "src/record/kernel_source.h"
#include "src/record/recorder.h"

namespace nanhunt::hooks {

// The engine tells of an op once it has launched everything, so an op's kernels are those launched since the op before
// it was told. What observers launch while they are told something is nanhunt's own: it stands between the two halves
// of this, one of which must be the first observer of the thread and the other the last.
class KernelTags {
 public:
  KernelTags(Recorder& recorder, record::KernelSource& source);  // not owned; must outlive this
  ~KernelTags();
  KernelTags(const KernelTags&) = delete;
  KernelTags& operator=(const KernelTags&) = delete;

  void observe_first();  // before all others are added
  void observe_last();   // after them

 private:
  class Half : public engine::Observer {
   public:
    Half(KernelTags& tags, bool first) : tags_(tags), first_(first) {}
    void on_op(const engine::OpCall&) noexcept override { tags_.tell(first_, true); }
    void on_step_begin(std::uint32_t step) noexcept override;
    void on_micro_batch(std::uint32_t, std::span<const std::int64_t>) noexcept override { tags_.tell(first_, false); }
    void on_mark(TensorRole, std::string_view, const engine::Tensor&) noexcept override { tags_.tell(first_, false); }
    void on_scaler(const ScalerEvent&) noexcept override { tags_.tell(first_, false); }
    void on_optimizer_begin() noexcept override { tags_.tell(first_, false); }
    void on_optimizer_end(bool) noexcept override { tags_.tell(first_, false); }
    void on_step_end(std::uint32_t step, double, double, double, bool) noexcept override;
    void on_step_given_up(std::uint32_t step, StepEnding, std::string_view) noexcept override {
      on_step_end(step, 0, 0, 1, false);
    }

   private:
    KernelTags& tags_;
    const bool first_;
  };

  void tell(bool begins, bool of_op) noexcept;
  void begin_gap() noexcept;
  void end_gap(std::uint64_t seq) noexcept;

  Recorder& recorder_;
  const record::NumberingRecorder* const numbers_;  // null: ops have no numbers that could be known here
  record::KernelSource& source_;
  Half first_{*this, true}, last_{*this, false};
  engine::HookHandle first_handle_, last_handle_;
  std::uint64_t ticket_ = 0, seq_ = kNoSeq;
  std::uint32_t step_ = 0;
  bool in_gap_ = false, own_ = false;
};

}  // namespace nanhunt::hooks
