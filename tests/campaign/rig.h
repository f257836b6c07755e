// SPDX-License-Identifier: Apache-2.0
// One run, ready to train: as drawn, with the fault planted or left out. Both have the same hand-written layer, and
// differ in nothing but the fault.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/trainer.h"
#include "tests/campaign/models.h"
#include "tests/campaign/settings.h"

namespace nanhunt::campaign {

class Rig;

// Where a hand-written computation stands: one of the network's sites, or the loss.
inline constexpr int kNowhere = -1, kInLoss = -2;

// What is planted. Each part acts through the engine's arithmetic or memory; nothing here knows a recorder.
struct Plan {
  std::uint32_t first_step = 0, last_step = std::numeric_limits<std::uint32_t>::max();  // in which it acts
  int site = kNowhere;
  std::function<engine::Tensor(const engine::Tensor& x, bool bad)> body;  // at that site, in every step
  std::function<void(engine::Batch&)> spoil_batch;                        // in steps in which it acts
  std::function<void(Settings&)> spoil_settings;
  std::function<void(Rig&)> before_training, before_step;  // the second: before first_step
  std::function<void(Rig&, std::uint32_t step)> after_update;  // within the optimizer's step
  // Pokes memory while the run goes on; made anew for each run.
  std::function<std::unique_ptr<engine::Observer>(Rig&)> make_saboteur;
  std::function<void(Rig&)> prepare;  // in faulty and clean runs alike
};

class Rig {
 public:
  Rig(const Settings& settings, const Plan& plan, bool faulty);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // From here on the plan's saboteur acts. Who watches must already do so: a saboteur acts after an op was told.
  void start_sabotage();
  // One step of training; before it what the plan does between steps.
  engine::StepResult step();
  bool acts(std::uint32_t step) const { return faulty_ && step >= plan_.first_step && step <= plan_.last_step; }

  engine::Trainer& trainer() { return *trainer_; }
  const Network& network() const { return network_; }
  const Settings& settings() const { return settings_; }
  std::uint32_t now() const { return now_; }  // step that is being trained
  engine::NamedTensor parameter(std::size_t index) const { return parameters_[index % parameters_.size()]; }
  const std::vector<engine::NamedTensor>& parameters() const { return parameters_; }
  std::string site_path(int site) const;  // "<loss>" for kInLoss

 private:
  Settings settings_;
  const Plan& plan_;
  bool faulty_;
  std::uint32_t now_ = 0;
  Network network_;  // its model has moved into the trainer
  std::vector<engine::NamedTensor> parameters_;
  std::unique_ptr<engine::Trainer> trainer_;
  std::unique_ptr<engine::Observer> saboteur_;
  engine::HookHandle sabotage_;
};

// The parameter that belongs to a layer, or its fp32 master: what training keeps it in.
std::vector<engine::Tensor> copies_of_parameter(Rig& rig, const std::string& path);

}  // namespace nanhunt::campaign
