// SPDX-License-Identifier: Apache-2.0
// Where nanhunt meets the bundled engine: an observer that feeds a recorder, and a replay for src/hunt.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/recorder.h"
#include "src/hunt/hunt.h"

namespace nanhunt::hooks {

// Level `ops`: every op, mark, batch and step of this thread's engine goes to `recorder` while this lives.
class EngineWatch {
 public:
  explicit EngineWatch(Recorder& recorder);  // not owned; must outlive this
  ~EngineWatch();
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;

 private:
  class Adapter;
  std::unique_ptr<Adapter> adapter_;
  engine::HookHandle handle_;
};

// Makes a fresh trainer of the same run, with the fix of that id applied ("" for none).
using TrainerFactory = std::function<std::unique_ptr<engine::Trainer>(const std::string& fix_id)>;

// Tries fixes by training again from step 0; compares each update with an fp64 optimizer of the same
// algorithm and hyperparameters (but with the eps of the unfixed run: raising it must not pass for a cure).
std::unique_ptr<hunt::Replay> make_engine_replay(TrainerFactory make_trainer, std::vector<hunt::Fix> fixes);

}  // namespace nanhunt::hooks
