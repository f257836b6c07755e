// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/kernel_tags.h"
#include "hooks/engine/lasting_watch.h"
#include "hooks/engine/op_adapter.h"
#include "hooks/engine/tensor_reader.h"

namespace nanhunt::hooks {

std::string_view device_stats_name(DeviceStats stats) { return stats == DeviceStats::kDeferred ? "deferred" : "sync"; }

std::optional<DeviceStats> parse_device_stats(std::string_view name) {
  for (const DeviceStats stats : {DeviceStats::kSync, DeviceStats::kDeferred}) {
    if (device_stats_name(stats) == name) return stats;
  }
  return std::nullopt;
}

EngineWatch::EngineWatch(Recorder& recorder, DeviceStats stats)
    : reader_(stats == DeviceStats::kDeferred ? std::make_unique<TensorReader>(recorder) : nullptr),
      adapter_(std::make_unique<OpAdapter>(recorder, reader_.get())),
      handle_(engine::add_observer(*adapter_)) {}

EngineWatch::~EngineWatch() = default;

TrainerWatch::TrainerWatch(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options) {
  if (options.kernels != nullptr) {
    tags_ = std::make_unique<KernelTags>(recorder, *options.kernels);
    tags_->observe_first();
  }
  ops_ = std::make_unique<EngineWatch>(recorder, options.device_stats);
  lasting_ = std::make_unique<LastingWatch>(trainer, ops_->adapter());
  handle_ = engine::add_observer(*lasting_);
  if (tags_) tags_->observe_last();
}

TrainerWatch::~TrainerWatch() = default;

}  // namespace nanhunt::hooks
