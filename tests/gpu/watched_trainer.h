// SPDX-License-Identifier: Apache-2.0
// A trainer of one of the measured sizes, watched in one of the ways that are measured.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hooks/cupti/kernel_watch.h"
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/kernel_tags.h"
#include "nanhunt/recorder.h"
#include "tests/gpu/gpt_like.h"

namespace nanhunt::gpu {

inline constexpr const char* kWatches[] = {"off", "ops", "ops+sync", "ops+cupti", "cupti", "detached"};

class WatchedTrainer {
 public:
  // Throws std::runtime_error with the reason where it cannot be had.
  WatchedTrainer(const std::string& size, const std::string& watch, const engine::Device& device);
  ~WatchedTrainer();
  WatchedTrainer(const WatchedTrainer&) = delete;
  WatchedTrainer& operator=(const WatchedTrainer&) = delete;

  engine::StepResult step();
  engine::Trainer& trainer() { return *trainer_; }

 private:
  std::string folder_;  // of the trace; goes with this
  std::unique_ptr<hooks::KernelWatch> kernels_;
  std::unique_ptr<engine::Trainer> trainer_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<hooks::KernelTags> tags_;
  std::optional<hooks::TrainerWatch> watch_;
};

}  // namespace nanhunt::gpu
