// SPDX-License-Identifier: Apache-2.0
// One run of the campaign's network, ready to train, with a fault planted or left out. Both runs have the same
// hand-written layer, and differ in nothing but the fault.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/trainer.h"

namespace nanhunt::campaign {

enum class Regime : std::uint8_t {
  kF16,         // parameters, gradients and state in fp16: SGD with momentum
  kF16Masters,  // fp16 with fp32 master weights and state: Adam, as in all that follow
  kAutocast,    // fp16 autocast and a dynamic GradScaler
  kBf16,        // bf16 with fp32 master weights and state
  kF32,
};

struct Settings {
  DType dtype = DType::kF32;
  bool autocast = false;
  engine::OptimizerOptions optimizer = {.algorithm = "adam", .lr = 2e-3};
  std::uint32_t steps = 14, micro_batches = 1;
  double dropout = 0, loss_weight = 1;
  bool regression = false;  // targets are images, not classes
  std::optional<double> clip_norm;
  bool clip_before_unscale = false, keep_skipped_gradients = false;
  std::optional<engine::GradScalerOptions> scaler;
};
Settings make_settings(Regime regime);

class Rig;

// Where a hand-written computation stands: behind fc1, behind fc2, or in the loss.
enum class Site : std::uint8_t { kNowhere, kExtra1, kExtra2, kLoss };

// What is planted. Each part acts through the engine's arithmetic or memory; nothing here knows a recorder.
struct Plan {
  std::uint32_t first_step = 0, last_step = std::numeric_limits<std::uint32_t>::max();  // in which it acts
  Site site = Site::kNowhere;
  std::function<engine::Tensor(const engine::Tensor& x, bool bad)> body = {};  // at that site, in every step
  std::function<void(engine::Batch&)> spoil_batch = {};                        // in steps in which it acts
  std::function<void(Settings&)> spoil_settings = {};
  std::function<void(Rig&)> before_step = {};                           // before first_step
  std::function<void(Rig&, std::uint32_t step)> after_update = {};      // within the optimizer's step
  std::function<std::unique_ptr<engine::Observer>(Rig&)> make_saboteur = {};  // pokes memory while the run goes on
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
  const Settings& settings() const { return settings_; }
  const std::vector<engine::NamedTensor>& parameters() const { return parameters_; }
  // A parameter ("fc1.weight") or optimizer state ("fc1.weight.exp_avg"); throws if there is none.
  engine::Tensor tensor(const std::string& path) const;

 private:
  Settings settings_;
  const Plan& plan_;
  bool faulty_;
  std::uint32_t now_ = 0;  // step that is being trained
  std::vector<engine::NamedTensor> parameters_;
  std::unique_ptr<engine::Trainer> trainer_;
  std::unique_ptr<engine::Observer> saboteur_;
  engine::HookHandle sabotage_;
};

}  // namespace nanhunt::campaign
