// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/stream/value_table.h"

#include <algorithm>

namespace nanhunt::analyze {

ValueStats compact(const TensorStats& stats) {
  constexpr std::int64_t kMaxNumel = std::int64_t{1} << 52;
  ValueStats out;
  out.level = stats.level;
  out.numel = std::clamp<std::int64_t>(stats.numel, 0, kMaxNumel);
  out.any_nonfinite = stats.any_nonfinite;
  out.first_nonfinite = std::clamp<std::int64_t>(stats.first_nonfinite, -1, out.numel - 1);
  if (out.counted()) {
    std::int64_t rest = out.numel;
    auto take = [&rest](std::int64_t count) {
      count = std::clamp<std::int64_t>(count, 0, rest);
      rest -= count;
      return count;
    };
    out.nan = take(stats.nan);
    out.pos_inf = take(stats.pos_inf);
    out.neg_inf = take(stats.neg_inf);
    out.zero = take(stats.zero);
    out.subnormal = take(stats.subnormal);
    out.amax = stats.amax;
    out.amin_nonzero = stats.amin_nonzero;
    out.min = stats.min;
    out.max = stats.max;
    out.sum = stats.sum;
    out.sum_sq = stats.sum_sq;
  }
  return out;
}

TensorStats expand(const ValueStats& stats) {
  TensorStats out;
  out.level = stats.level;
  out.numel = stats.numel;
  out.any_nonfinite = stats.any_nonfinite;
  out.first_nonfinite = stats.first_nonfinite;
  out.nan = stats.nan;
  out.pos_inf = stats.pos_inf;
  out.neg_inf = stats.neg_inf;
  out.zero = stats.zero;
  out.subnormal = stats.subnormal;
  out.amax = stats.amax;
  out.amin_nonzero = stats.amin_nonzero;
  out.min = stats.min;
  out.max = stats.max;
  out.sum = stats.sum;
  out.sum_sq = stats.sum_sq;
  return out;
}

Extent extent_of(std::int64_t offset, std::int64_t numel, const LayoutRecord* layout) {
  constexpr std::int64_t kFar = std::int64_t{1} << 52;
  offset = std::clamp(offset, -kFar, kFar);
  const Extent dense{offset, offset + std::clamp<std::int64_t>(numel, 0, kFar)};
  if (layout == nullptr || layout->strides.size() != layout->sizes.size()) return dense;
  double low = 0, high = 0;  // exact: whatever does not fit is not believed
  for (std::size_t i = 0; i < layout->sizes.size(); ++i) {
    if (layout->sizes[i] <= 0) return {offset, offset};
    const double reach = static_cast<double>(layout->sizes[i] - 1) * static_cast<double>(layout->strides[i]);
    (reach < 0 ? low : high) += reach;
  }
  if (high > static_cast<double>(kFar) || low < -static_cast<double>(kFar)) return dense;
  return {offset + static_cast<std::int64_t>(low), offset + static_cast<std::int64_t>(high) + 1};
}

namespace {

std::uint8_t bad_kinds(const ValueStats& stats) {
  unsigned kinds = 0;
  if (stats.nan > 0) kinds |= kBadNaN;
  if (stats.pos_inf > 0) kinds |= kBadPosInf;
  if (stats.neg_inf > 0) kinds |= kBadNegInf;
  // Known to be bad, not how (level finite): taken as NaN, which excuses nothing.
  if (kinds == 0 && stats.any_nonfinite) kinds = kBadNaN;
  return static_cast<std::uint8_t>(kinds);
}

}  // namespace

Value* ValueTable::find(ValueId id) {
  const std::int32_t* slot = index_.find(id);
  return slot == nullptr ? nullptr : &at(*slot);
}

Value* ValueTable::insert(const ValueRecord& record, const LayoutRecord* layout) {
  if (index_.size() >= kMaxLive + kRecentDead) {
    if (index_.find(record.id) != nullptr) return nullptr;
    evict_one();
  }
  const std::size_t known = index_.size();
  std::int32_t* entry = index_.insert(record.id);
  if (entry == nullptr || index_.size() == known) return nullptr;
  std::int32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::int32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  *entry = slot;

  Value& value = at(slot);
  value = Value{};
  value.id = record.id;
  value.base = record.base < record.id ? record.base : 0;  // a view is seen after what it views
  value.storage = record.storage;
  value.producer = record.producer;
  value.version = record.version;
  value.layout = record.layout;
  value.has_stats = record.has_stats;
  if (record.has_stats) {
    value.stats = compact(record.stats);
    value.bad = bad_kinds(value.stats);
    value.flushed = std::clamp<std::int64_t>(record.flushed, -1, value.stats.numel);
  }

  value.extent = extent_of(record.offset, value.stats.numel, layout);

  StorageInfo* info = storages_.insert(record.storage);
  if (info == nullptr) {  // storage unknown: nothing will ever end its life, so it lives as long as the recent dead
    bury(slot);
    return &value;
  }
  if (info->maker == kNoSeq) info->maker = record.producer;
  if (info->newest < 0) {
    info->seen = value.extent;
  } else {
    info->seen = {std::min(info->seen.first, value.extent.first), std::max(info->seen.end, value.extent.end)};
  }
  value.older = info->newest;
  if (info->newest >= 0) at(info->newest).newer = slot;
  info->newest = slot;
  if (info->oldest < 0) info->oldest = slot;
  return &value;
}

std::uint64_t ValueTable::producer_of(const Value& value) {
  if (value.producer != kNoSeq || value.base == 0) return value.producer;
  const Value* base = find(value.base);
  if (base == nullptr || base->version != value.version) return kNoSeq;
  // What was written through a view of a part (a diagonal) did not make the rest; an expanded view has no more numbers.
  const std::int64_t seen = std::min(value.stats.numel, value.extent.end - value.extent.first);
  return base->stats.numel < seen ? kNoSeq : base->producer;
}

void ValueTable::unlink(std::int32_t slot, StorageInfo& info) {
  Value& value = at(slot);
  if (value.older >= 0) at(value.older).newer = value.newer;
  if (value.newer >= 0) at(value.newer).older = value.older;
  if (info.oldest == slot) info.oldest = value.newer;
  if (info.newest == slot) info.newest = value.older;
  value.older = value.newer = -1;
}

void ValueTable::bury(std::int32_t slot) {
  constexpr std::size_t kAhead = 8;  // what was used last long ago is far away: it is asked for in time
  Value& value = at(slot);
  value.dead = true;
  dead_.push_back({slot, value.id});
  if (dead_.size() <= kRecentDead) return;
  const Dead gone = dead_.front();
  dead_.pop_front();
  index_.prefetch(dead_[kAhead].id);
  __builtin_prefetch(&at(dead_[kAhead].slot), 1);
  index_.erase(gone.id);
  at(gone.slot).id = 0;
  free_.push_back(gone.slot);
}

void ValueTable::free_storage(std::uint64_t storage_id) {
  StorageInfo* info = storages_.find(storage_id);
  if (info == nullptr) return;
  while (info->oldest >= 0) {
    const std::int32_t slot = info->oldest;
    unlink(slot, *info);
    bury(slot);
  }
  storages_.erase(storage_id);
}

void ValueTable::evict_one() {
  for (std::size_t looked = 0; looked < slots_.size(); ++looked) {
    sweep_ = sweep_ + 1 < slots_.size() ? sweep_ + 1 : 0;
    Value& value = slots_[sweep_];
    if (value.id == 0 || value.dead) continue;
    if (StorageInfo* info = storages_.find(value.storage)) {
      unlink(static_cast<std::int32_t>(sweep_), *info);
      if (info->oldest < 0) storages_.erase(value.storage);
    }
    bury(static_cast<std::int32_t>(sweep_));
    ++evicted_;
    return;
  }
}

}  // namespace nanhunt::analyze
