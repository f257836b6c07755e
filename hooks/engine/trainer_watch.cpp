// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/kernel_tags.h"
#include "hooks/engine/sentinel/lasting_watch.h"
#include "hooks/engine/op_adapter.h"
#include "hooks/engine/sentinel/sentinel.h"

namespace nanhunt::hooks {
namespace {

constexpr std::pair<WatchLevel, std::string_view> kNames[] = {{WatchLevel::kSentinel, "sentinel"},
                                                              {WatchLevel::kOps, "ops"}};

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
  sentinel_ = std::make_unique<Sentinel>(trainer, recorder, options);
  handle_ = engine::add_observer(*sentinel_);
}

TrainerWatch::~TrainerWatch() = default;

std::uint32_t TrainerWatch::triggers() const { return sentinel_ ? sentinel_->triggers() : 0; }

BoundaryPlan TrainerWatch::boundary() const { return sentinel_ ? sentinel_->boundary() : BoundaryPlan{}; }

kernels::ReadingsCounts TrainerWatch::readings() const {
  return sentinel_ ? sentinel_->counts() : ops_->readings();
}

void TrainerWatch::finish() noexcept {
  if (sentinel_) sentinel_->finish();
  if (ops_) ops_->adapter().finish();
}

}  // namespace nanhunt::hooks
