// SPDX-License-Identifier: Apache-2.0
// Level sentinel: what is looked at in every step of a trainer, and what happens when it is bad.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/read_group.h"
#include "hooks/engine/sentinel/norm_ring.h"
#include "hooks/engine/sentinel/optimizer_audit.h"
#include "hooks/engine/sentinel/optimizer_boundary.h"
#include "kernels/device_readings.h"
#include "src/hunt/replay_comparison.h"
#include "src/hunt/step_judge.h"

namespace nanhunt::hooks {

// Contents are asked for, and a step is judged once all that was read in it is there. The host answers at once. On a
// device the trainer's own read of the loss, after the optimizer, brings the answers; until then a step's rows, and
// those of steps after it, are held back, so that a trace is as one from the CPU.
class Sentinel final : public engine::Observer {
 public:
  Sentinel(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options);
  ~Sentinel() override;

  // Judges what is left; waits for the device. For the end of a run.
  void finish() noexcept;

  std::uint32_t triggers() const { return judge_.taken(); }
  const BoundaryPlan& boundary() const { return plan_; }
  kernels::ReadingsCounts counts() const { return device_ ? device_->counts() : kernels::ReadingsCounts{}; }

  bool wants_ops() const noexcept override { return false; }
  void on_step_begin(std::uint32_t step) noexcept override;
  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept override;
  void on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept override;
  void on_scaler(const ScalerEvent& event) noexcept override;
  void on_optimizer_begin() noexcept override;
  void on_optimizer_end(bool skipped) noexcept override;
  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override;
  void on_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) noexcept override;

 private:
  // A parameter, a tensor of state or a buffer.
  struct Watched {
    TensorRole kind;
    std::string path;
    engine::Tensor tensor;
    std::optional<std::uint32_t> asked_version = {};  // when it was last read
    Reading last = {};                                // of the last step that is judged
    std::uint32_t read_in = 0;                        // step
    // As it was before the step that is being judged wrote it.
    Reading before = {};
    std::optional<std::uint32_t> asked_before = {};
    std::uint32_t before_read_in = 0;
    bool noted = false;    // as bad, in the step that is being judged
    bool changed = false;  // unseen, in that step
    bool is_mask = false;  // a buffer that held infinities, and no NaN, before the first step

    bool is_bad() const { return !last.finite && (last.nan || !is_mask); }
  };
  enum class Part : std::uint8_t { kLoaded, kLoss, kValidated, kKept, kGradient, kParameter, kState, kBuffer };
  struct Group {
    ReadGroup read;
    std::vector<std::pair<Part, std::size_t>> parts;
    bool starts_run = false;
    bool absorbed = false;
  };
  // Contents of the step's batch.
  struct Loaded {
    TensorRole kind;
    std::string path;
    engine::Tensor tensor;
    std::uint32_t version = 0;
    Reading reading = {};
    bool changed = false;  // unseen
  };
  // A row that waits for those of the steps before.
  struct DeferredEvent {
    std::optional<ScalerEvent> scaler;  // else a batch
    std::string text;
    std::uint32_t micro_batch = 0;
    std::vector<std::int64_t> sample_ids;
  };
  struct Loss {
    std::string path, name;  // name: in the words of a comparison
    Reading reading = {};
    bool is_one = false;  // of a validation: a single number
  };
  struct Gradient {
    bool is_stepped = false;
    Reading reading = {};
  };
  struct Step {
    std::uint32_t number = 0;
    std::deque<Group> groups;  // in the order in which they were asked for
    std::vector<Loaded> loaded;
    std::size_t loaded_asked = 0;
    std::vector<Loss> losses;
    std::vector<Loss> validated;  // what a validation gave
    std::vector<Gradient> gradients;  // by parameter
    std::vector<DeferredEvent> held;
    std::optional<StepEvent> end;
    std::string said;  // with which it ended
    bool opened = false, skipped = false, lost = false;
    bool changes_reported = false, audited = false;
    std::uint32_t micro_batch = 0;
  };
  enum class Moment : std::uint8_t { kBoundary, kAfter };

  // The host reads: then contents that change unseen are looked for in every step, not in bad ones alone.
  bool answers_at_once() const { return device_ == nullptr; }
  void open_device();
  Step* at_hand();  // the step that is watched now; null: none
  bool is_over(const Step& step) const { return &step != &steps_.back() || !judge_.is_open(); }
  hunt::StepVerdict& verdict(const Step& step) { return judge_.verdict(step.number); }
  void ask(Step& step, Group&& group);
  static Wanted wanted_of(Part part);
  void add(Group& group, Part part, std::size_t index, const engine::Tensor& tensor);
  void add_written(Group& group, Part part);  // since they were last read
  void add_loaded(Group& group, Step& step);
  std::vector<Watched>& list_of(Part part);
  void begin_step(std::uint32_t step);
  void at_boundary(Step& step);
  void audit(Step& step);  // before the optimizer, with the step's gradients known
  void copy_at_boundary(std::uint32_t step);

  // Oldest step first.
  void report_steps(bool wait) noexcept;
  void report_step(Step& step);
  void end_step(const StepEvent& event) noexcept;
  void report_deferred(Step& step);
  bool absorb(Step& step, bool wait);  // true: all of it that was asked for
  void absorb_group(Step& step, Group& group);
  void open_step(Step& step);
  void note(Step& step, Watched& watched);
  void report_health(const Step& step, bool is_read);
  hunt::Harm harm(const Step& step);

  // When something is bad.
  bool trigger(Step& step, Moment moment);  // true: the step was run again
  void look_for_changes(Step& step, std::initializer_list<Part> parts, bool in_batch);
  void look_for_changes_in_copy(Step& step);
  void look_for_the_impossible(Step& step);
  void report_changes(Step& step);
  void report_change(const Step& step, const Watched& watched, std::uint32_t since);
  void read_state(Step& step);
  void audit_in_hindsight(Step& step);
  void replay(Step& step, Moment moment);
  void refuse(const Step& step, const std::string& why);
  std::vector<hunt::StepFact> facts(const Step& step, Moment moment) const;

  engine::Trainer& trainer_;
  Recorder& recorder_;
  const WatchOptions options_;
  hunt::StepJudge judge_;
  NormRing norms_;
  BoundaryPlan plan_;
  bool close_ = false;                                // state is read every step
  std::unique_ptr<kernels::DeviceReadings> device_;   // null: the host reads
  std::vector<Watched> parameters_, state_, buffers_;  // those of the optimizer first
  std::size_t optimized_ = 0;                         // parameters that are the optimizer's
  OptimizerAudit audit_;
  engine::OptimizerCopy copy_;
  std::optional<std::uint32_t> copied_in_;       // step whose boundary the copy is of
  std::vector<const Watched*> changed_in_copy_;  // of the step that triggers
  bool start_read_ = false, boundary_reported_ = false, unread_reported_ = false;
  std::deque<Step> steps_;  // the one at hand is the last
  std::size_t next_gradient_ = 0;
  Group boundary_;  // gradients, as they are marked
  std::uint64_t lost_steps_ = 0, waits_reported_ = 0;
};

}  // namespace nanhunt::hooks
