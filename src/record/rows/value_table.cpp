// SPDX-License-Identifier: Apache-2.0
#include "src/record/rows/value_table.h"

#include <algorithm>
#include <utility>

namespace nanhunt::record {
namespace {

// Room for one element more than `size`, so that the push that follows cannot throw.
template <typename T>
void grow_for_one(std::vector<T>& items, std::size_t size) {
  if (items.capacity() <= size) items.reserve(std::max<std::size_t>(64, 2 * size));
}

}  // namespace

void ValueTable::note_row(std::uint64_t& lowest, std::uint64_t row_batch) {
  if (row_batch != 0 && (lowest == 0 || row_batch < lowest)) lowest = row_batch;
}

ValueInfo* ValueTable::find(std::uint64_t storage, std::uint32_t version, std::int64_t offset, LayoutId layout) {
  if (storage == 0) return nullptr;
  const auto it = storages_.find(storage);
  if (it == storages_.end()) return nullptr;
  for (std::uint32_t link = it->second.head; link != 0; link = slot(link).next) {
    const ValueRecord& r = slot(link).record;
    if (r.version == version && r.offset == offset && r.layout == layout && !slot(link).superseded) return &slot(link);
  }
  return nullptr;
}

ValueInfo* ValueTable::find_base(std::uint64_t storage, std::uint32_t version) {
  if (storage == 0) return nullptr;
  const auto it = storages_.find(storage);
  if (it == storages_.end()) return nullptr;
  ValueInfo* oldest = nullptr;
  for (std::uint32_t link = it->second.head; link != 0; link = slot(link).next) {
    if (slot(link).record.version == version && !slot(link).superseded) oldest = &slot(link);
  }
  return oldest;
}

ValueInfo* ValueTable::find_id(std::uint64_t storage, ValueId id) {
  if (storage == 0) return nullptr;
  const auto it = storages_.find(storage);
  if (it == storages_.end()) return nullptr;
  for (std::uint32_t link = it->second.head; link != 0; link = slot(link).next) {
    if (slot(link).record.id == id) return &slot(link);
  }
  return nullptr;
}

ValueInfo& ValueTable::add(ValueRecord record, DType dtype, std::uint64_t row_batch) {
  const std::uint64_t storage = record.storage;
  const std::uint32_t version = record.version;
  StorageEntry* entry = nullptr;
  if (storage != 0) {
    entry = &storages_[storage];
    grow_for_one(untrimmed_, untrimmed_.size());
  } else {
    grow_for_one(anonymous_, anonymous_.size());
  }
  if (free_.empty()) {
    grow_for_one(free_, slots_.size());
    slots_.emplace_back();
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
  }
  const std::uint32_t link = free_.back();
  free_.pop_back();
  ValueInfo& info = slot(link);
  info.record = std::move(record);
  info.dtype = dtype;
  info.row_batch = row_batch;
  info.next = 0;
  if (entry == nullptr) {
    anonymous_.push_back(link);
    return info;
  }
  if (entry->count >= limits_.values_per_storage || (entry->count > 0 && version != entry->newest_version)) {
    untrimmed_.push_back(storage);
  }
  info.next = entry->head;
  entry->head = link;
  ++entry->count;
  entry->newest_version = std::max(entry->newest_version, version);
  return info;
}

void ValueTable::touch(std::uint64_t storage, std::uint64_t now) {
  if (const auto it = storages_.find(storage); it != storages_.end()) it->second.last_use = now;
}

void ValueTable::free_slot(std::uint32_t link) noexcept {
  slot(link) = ValueInfo{};
  free_.push_back(link);
}

void ValueTable::end_event() noexcept {
  for (std::uint32_t link : anonymous_) free_slot(link);
  anonymous_.clear();
  for (std::uint64_t storage : untrimmed_) trim(storage);
  untrimmed_.clear();
}

void ValueTable::trim(std::uint64_t storage) noexcept {
  const auto it = storages_.find(storage);
  if (it == storages_.end()) return;
  StorageEntry& entry = it->second;
  const std::uint32_t newest = entry.newest_version;
  std::uint32_t kept = 0;
  std::uint32_t* from = &entry.head;
  while (*from != 0) {
    const std::uint32_t link = *from;
    ValueInfo& info = slot(link);
    const bool old = newest - info.record.version >= limits_.versions;
    if (old || kept >= limits_.values_per_storage) {
      note_row(entry.forgotten_row, info.row_batch);
      *from = info.next;
      free_slot(link);
      --entry.count;
    } else {
      ++kept;
      from = &info.next;
    }
  }
}

ValueTable::Released ValueTable::release(std::uint64_t storage) {
  Released released;
  const auto it = storages_.find(storage);
  if (it == storages_.end()) return released;
  released.known = true;
  released.first_batch = it->second.forgotten_row;
  for (std::uint32_t link = it->second.head; link != 0;) {
    const std::uint32_t next = slot(link).next;
    note_row(released.first_batch, slot(link).row_batch);
    free_slot(link);
    link = next;
  }
  released.has_rows = released.first_batch != 0;
  storages_.erase(it);
  return released;
}

std::vector<std::uint64_t> ValueTable::least_recently_used() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_use;  // (last use, storage)
  by_use.reserve(storages_.size());
  for (const auto& [storage, entry] : storages_) by_use.emplace_back(entry.last_use, storage);
  const auto middle = by_use.begin() + static_cast<std::ptrdiff_t>(by_use.size() / 2);
  std::nth_element(by_use.begin(), middle, by_use.end());
  std::vector<std::uint64_t> storages;
  storages.reserve(by_use.size() / 2);
  for (auto it = by_use.begin(); it != middle; ++it) storages.push_back(it->second);
  std::sort(storages.begin(), storages.end());
  return storages;
}

}  // namespace nanhunt::record
