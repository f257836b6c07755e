// SPDX-License-Identifier: Apache-2.0
// Levels sentinel and sampled: what is looked at in every step of a trainer, and what happens when it is bad.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/sentinel/norm_ring.h"
#include "hooks/engine/sentinel/optimizer_audit.h"
#include "hooks/engine/sentinel/reading.h"
#include "hooks/engine/sentinel/step_sampler.h"
#include "src/hunt/replay_comparison.h"
#include "src/hunt/step_verdict.h"

namespace nanhunt::hooks {

class Sentinel final : public engine::Observer {
 public:
  Sentinel(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options);
  ~Sentinel() override;

  std::uint32_t triggers() const { return policy_.triggers(); }

  bool wants_ops() const noexcept override { return false; }
  void on_step_begin(std::uint32_t step) noexcept override;
  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept override;
  void on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept override;
  void on_scaler(const ScalerEvent& event) noexcept override;
  void on_optimizer_begin() noexcept override;
  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override;

 private:
  // A parameter, a tensor of state or a buffer.
  struct Watched {
    TensorRole kind;
    std::string path;
    engine::Tensor tensor;
    Reading last;
    std::uint32_t read_in = 0;  // step
    bool noted = false;         // as bad, in this step
    bool changed = false;       // unseen, in this step
    bool is_mask = false;       // a buffer that held infinities, and no NaN, before the first step

    bool is_bad() const { return !last.finite && (last.nan || !is_mask); }
  };
  // Contents of the step's batch, read when they were loaded.
  struct Loaded {
    TensorRole kind;
    std::string path;
    engine::Tensor tensor;
    Reading reading;
  };

  bool is_watching() const { return begun_ && trainer_.stepping() && !engine::replaying(); }
  void begin_step(std::uint32_t step);
  void read_start();
  void note(Watched& watched);
  void look_for_changes(std::vector<Watched>& list);
  void look_for_kept_gradients();
  void look_for_the_impossible();
  bool read_if_written(Watched& watched);  // since it was last read
  void audit();
  void at_boundary();
  void after_step(bool skipped);

  // When something is bad.
  void trigger(bool after_optimizer);
  void report_changes();
  void replay(bool after_optimizer);
  void refuse(const std::string& why);
  std::vector<hunt::StepFact> facts(bool after_optimizer) const;

  engine::Trainer& trainer_;
  Recorder& recorder_;
  const WatchOptions options_;
  hunt::ReplayPolicy policy_;
  NormRing norms_;
  std::vector<Watched> parameters_, state_, buffers_;  // those of the optimizer first
  OptimizerAudit audit_;
  bool close_ = false;                                 // state is read and copied too
  engine::OptimizerCopy copy_;
  StepSampler sampler_;

  // Of the step at hand.
  bool begun_ = false, start_read_ = false;
  std::uint32_t step_ = 0, micro_batch_ = 0;
  std::vector<Loaded> loaded_;
  std::vector<hunt::StepFact> losses_;
  std::vector<Reading> gradients_;  // by parameter; not known: none
  std::size_t next_gradient_ = 0;
  bool copied_ = false, changes_reported_ = false, judged_ = false;
  hunt::StepVerdict verdict_;
};

}  // namespace nanhunt::hooks
