// SPDX-License-Identifier: Apache-2.0
// Level sampled: every so many steps all ops are recorded. It hears of ends of storages for a while longer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/op_adapter.h"

namespace nanhunt::hooks {

class StepSampler {
 public:
  StepSampler(Recorder& recorder, const WatchOptions& options)
      : every_(options.level == WatchLevel::kSampled ? std::max(options.sample_every, 1u) : 0),
        ops_(recorder, /*whole_run=*/false) {}

  bool takes(std::uint32_t step) const { return every_ != 0 && step % every_ == 0; }
  void begin(std::uint32_t step) {
    sampling_ = true;
    ops_.pause(false);
    ops_.on_step_begin(step);
    if (handle_.empty()) handle_ = engine::add_observer(ops_);
  }
  // By then what a sampled step left is gone.
  void on_loss() {
    if (!sampling_) handle_.remove();
  }
  void end() {
    sampling_ = false;
    ops_.pause(true);
  }

 private:
  std::uint32_t every_;  // 0: none
  OpAdapter ops_;
  engine::HookHandle handle_;
  bool sampling_ = false;
};

}  // namespace nanhunt::hooks
