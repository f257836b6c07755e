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

// How what is in tensors of a device becomes known.
enum class DeviceStats : std::uint8_t {
  // Contents are copied to the host, which waits for the device at every op.
  kSync,
  // Read on the device and known later: no wait (hooks/engine/GUIDE.md).
  kDeferred,
};
std::string_view device_stats_name(DeviceStats stats);  // "sync", "deferred"
std::optional<DeviceStats> parse_device_stats(std::string_view name);

// Every op, mark, batch and step of this thread's engine goes to `recorder` while this lives.
class EngineWatch {
 public:
  explicit EngineWatch(Recorder& recorder, DeviceStats stats = DeviceStats::kDeferred);  // not owned; must outlive this
  ~EngineWatch();
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;
  OpAdapter& adapter() { return *adapter_; }

 private:
  std::unique_ptr<TensorReader> reader_;
  std::unique_ptr<OpAdapter> adapter_;
  engine::HookHandle handle_;
};

struct WatchOptions {
  DeviceStats device_stats = DeviceStats::kDeferred;
  // Told which launches belong to which op, and asked for their kernels after every step; not owned.
  record::KernelSource* kernels = nullptr;
};

// An EngineWatch of one trainer, on the thread that made it, while it lives; the trainer must outlive it, and the
// recorder. It ends when what is under way on a device has been reported. What outlives a step is looked at in time
// besides: an op that writes over it does not show what it held.
class TrainerWatch {
 public:
  TrainerWatch(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options = {});
  ~TrainerWatch();
  TrainerWatch(const TrainerWatch&) = delete;
  TrainerWatch& operator=(const TrainerWatch&) = delete;


 private:
  std::unique_ptr<KernelTags> tags_;
  std::unique_ptr<EngineWatch> ops_;
  std::unique_ptr<LastingWatch> lasting_;
  engine::HookHandle handle_;
};

// Makes a fresh trainer of the same run, with the fix of that id applied ("" for none).
using TrainerFactory = std::function<std::unique_ptr<engine::Trainer>(const std::string& fix_id)>;

// Tries fixes by training again from step 0; compares each update with an fp64 optimizer of the same
// algorithm and hyperparameters (but with the eps of the unfixed run: raising it must not pass for a cure).
std::unique_ptr<hunt::Replay> make_engine_replay(TrainerFactory make_trainer, std::vector<hunt::Fix> fixes);

}  // namespace nanhunt::hooks
