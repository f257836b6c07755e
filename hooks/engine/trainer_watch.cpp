// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/device_sentinel.h"
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/kernel_tags.h"
#include "hooks/engine/sentinel/lasting_watch.h"
#include "hooks/engine/op_adapter.h"
#include "hooks/engine/sentinel/sentinel.h"

namespace nanhunt::hooks {
namespace {

constexpr std::pair<WatchLevel, std::string_view> kNames[] = {
    {WatchLevel::kSentinel, "sentinel"}, {WatchLevel::kSampled, "sampled"}, {WatchLevel::kOps, "ops"}};

}  // namespace

std::string_view watch_level_name(WatchLevel level) {
  for (const auto& [known, name] : kNames) {
    if (known == level) return name;
  }
  return "";
}

std::optional<WatchLevel> parse_watch_level(std::string_view name) {
  for (const auto& [level, known] : kNames) {
    if (known == name) return level;
  }
  return std::nullopt;
}

std::string_view device_stats_name(DeviceStats stats) { return stats == DeviceStats::kDeferred ? "deferred" : "sync"; }

std::optional<DeviceStats> parse_device_stats(std::string_view name) {
  for (const DeviceStats stats : {DeviceStats::kSync, DeviceStats::kDeferred}) {
    if (device_stats_name(stats) == name) return stats;
  }
  return std::nullopt;
}

TrainerWatch::TrainerWatch(engine::Trainer& trainer, Recorder& recorder, const WatchOptions& options) {
  if (options.level == WatchLevel::kOps) {
    if (options.kernels != nullptr) {
      tags_ = std::make_unique<KernelTags>(recorder, *options.kernels);
      tags_->observe_first();
    }
    ops_ = std::make_unique<EngineWatch>(recorder, options.device_stats);
    lasting_ = std::make_unique<LastingWatch>(trainer, ops_->adapter());
    handle_ = engine::add_observer(*lasting_);
    if (tags_) tags_->observe_last();
    return;
  }
  const std::vector<engine::NamedTensor>& parameters = trainer.optimizer().parameters();
  if (!parameters.empty() && !parameters[0].tensor.device().is_cpu()) {
    on_device_ = std::make_unique<DeviceSentinel>(trainer, recorder, options);
    if (on_device_->usable()) {
      handle_ = engine::add_observer(*on_device_);
      return;
    }
    recorder.on_note(
        {0, "boundary sync, each tensor copied to the host: this device gives no readings: " + on_device_->why_not(), 1});
    on_device_.reset();
    boundary_.way = BoundaryPlan::Way::kSync;
  }
  sentinel_ = std::make_unique<Sentinel>(trainer, recorder, options);
  handle_ = engine::add_observer(*sentinel_);
}

TrainerWatch::~TrainerWatch() = default;

std::uint32_t TrainerWatch::triggers() const {
  return sentinel_ ? sentinel_->triggers() : on_device_ ? on_device_->triggers() : 0;
}

BoundaryPlan TrainerWatch::boundary() const { return on_device_ ? on_device_->boundary() : boundary_; }

kernels::ReadingsCounts TrainerWatch::readings() const {
  return on_device_ ? on_device_->counts() : ops_ ? ops_->readings() : kernels::ReadingsCounts{};
}

void TrainerWatch::finish() noexcept {
  if (on_device_) on_device_->finish();
  if (ops_) ops_->adapter().finish();
}

}  // namespace nanhunt::hooks
