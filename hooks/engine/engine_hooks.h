// SPDX-License-Identifier: Apache-2.0
// Where nanhunt meets the bundled engine: an observer that feeds a recorder, and a replay for src/hunt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/sentinel/optimizer_boundary.h"
#include "kernels/device_readings.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/recorder.h"
#include "src/hunt/hunt.h"
#include "src/record/kernel_source.h"

namespace nanhunt::hooks {

class TensorReader;
class KernelTags;
class LastingWatch;
class OpAdapter;
class Sentinel;

// How level `ops` learns what is in tensors of a device.
enum class DeviceStats : std::uint8_t {
  // Contents are copied to the host, which waits for the device at every op.
  kSync,
  // Read on the device and told later: no wait (hooks/engine/README.md).
  kDeferred,
};
std::string_view device_stats_name(DeviceStats stats);  // "sync", "deferred"
std::optional<DeviceStats> parse_device_stats(std::string_view name);

// Level `ops`: every op, mark, batch and step of this thread's engine goes to `recorder` while this lives.
class EngineWatch {
 public:
  explicit EngineWatch(Recorder& recorder, DeviceStats stats = DeviceStats::kDeferred);  // not owned; must outlive this
  ~EngineWatch();
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;
  OpAdapter& adapter() { return *adapter_; }
  kernels::ReadingsCounts readings() const;

 private:
  std::unique_ptr<TensorReader> reader_;
  std::unique_ptr<OpAdapter> adapter_;
  engine::HookHandle handle_;
};

enum class WatchLevel : std::uint8_t { kSentinel, kOps };

struct WatchOptions {
  WatchLevel level = WatchLevel::kSentinel;
  std::uint32_t ring_steps = 32;  // of norms in memory, written on a trigger
  std::uint32_t max_triggers = 10, trigger_distance = 100;  // hunt::TriggerOptions
  bool replay = true;                // false: a trigger records the norms and what is bad, and runs nothing again
  // Parameters and state together, of a model that is watched more closely: copied at the optimizer boundary, so that a step whose
  // optimizer made them bad can be replayed, parameters compared before every update, and state read every step. In a
  // larger model that costs more than the percent of a step that the sentinel may take: there parameters are compared
  // when a step is bad.
  std::size_t close_bytes = std::size_t{96} << 10;
  // On a device (hooks/engine/sentinel/optimizer_boundary.h): how what goes bad is learnt, and the most that a copy of parameters and state
  // may take there. On the CPU everything is known at once.
  OptimizerBoundary boundary = OptimizerBoundary::kAuto;
  std::uint64_t shadow_bytes = std::uint64_t{4} << 30;
  DeviceStats device_stats = DeviceStats::kDeferred;  // kOps
  // kOps: told which launches belong to which op, and asked for their kernels after every step. Not owned.
  record::KernelSource* kernels = nullptr;
};

// Watches one trainer, on the thread that made it, while it lives; the trainer must outlive it, and the recorder. At
// kOps it is an EngineWatch. At kSentinel nothing is done for single ops: every step the batch, the loss, the gradients
// at the optimizer boundary and what the optimizer left are read once; the optimizer's update is audited before it happens; contents
// that changed though nothing wrote them are found. A bad step is replayed op by op into the same recorder.
class TrainerWatch {
 public:
  TrainerWatch(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options = {});
  ~TrainerWatch();
  TrainerWatch(const TrainerWatch&) = delete;
  TrainerWatch& operator=(const TrainerWatch&) = delete;

  std::uint32_t triggers() const;  // replays so far
  // Reports what is still under way on a device, and waits for it. For the end of a run; the destructor does it too.
  void finish() noexcept;
  BoundaryPlan boundary() const;  // as it is now
  kernels::ReadingsCounts readings() const;  // of a device

 private:
  std::unique_ptr<KernelTags> tags_;
  std::unique_ptr<EngineWatch> ops_;
  std::unique_ptr<LastingWatch> lasting_;
  std::unique_ptr<Sentinel> sentinel_;
  engine::HookHandle handle_;
};

std::string_view watch_level_name(WatchLevel level);  // "sentinel", "ops"
std::optional<WatchLevel> parse_watch_level(std::string_view name);

// Makes a fresh trainer of the same run, with the fix of that id applied ("" for none).
using TrainerFactory = std::function<std::unique_ptr<engine::Trainer>(const std::string& fix_id)>;

// Tries fixes by training again from step 0; compares each update with an fp64 optimizer of the same
// algorithm and hyperparameters (but with the eps of the unfixed run: raising it must not pass for a cure).
std::unique_ptr<hunt::Replay> make_engine_replay(TrainerFactory make_trainer, std::vector<hunt::Fix> fixes);

}  // namespace nanhunt::hooks
