// SPDX-License-Identifier: Apache-2.0
// Which contents have which ValueId. Contents are named by (storage, version, offset, layout); storages are never
// reused, so a key means the same contents for as long as the table keeps it. Memory is bounded by live storages,
// and by two caps for runs that hide their ends of life or cut endless views of one storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::record {

struct ValueInfo {
  ValueRecord record;
  DType dtype = DType::kF32;
  // Number of the batch that holds the row; 0: the row was dropped, so whoever needs the value again writes it again.
  std::uint64_t row_batch = 0;
  // Of its contents, when they could be read; last op after which they were found to be those, and its step.
  std::uint64_t checksum = 0, checked_after = kNoSeq;
  std::uint32_t checked_step = 0;
  bool has_checksum = false;

  bool is_bad() const { return record.has_stats && record.stats.nonfinite() > 0; }
  bool known_finite() const { return record.has_stats && record.stats.nonfinite() == 0; }

 private:
  friend class ValueTable;
  bool superseded = false;
  std::uint32_t next = 0;  // in its storage's list, newest first; slot + 1, 0: end
};

struct ValueTableLimits {
  std::size_t storages = std::size_t{1} << 17;  // past this the less recently used half is forgotten
  std::uint32_t values_per_storage = 256;       // past this the oldest are forgotten
  std::uint32_t versions = 4;                   // newest versions kept
};

class ValueTable {
 public:
  explicit ValueTable(ValueTableLimits limits = {}) : limits_(limits) {}

  // Pointers stay valid until the value is forgotten: release() or end_event().
  ValueInfo* find(std::uint64_t storage, std::uint32_t version, std::int64_t offset, LayoutId layout);
  // The oldest known value with these contents, whichever part it shows.
  ValueInfo* find_base(std::uint64_t storage, std::uint32_t version);
  ValueInfo* find_id(std::uint64_t storage, ValueId id);
  // Contents changed without a new version: these no longer name them. They are found by their id alone.
  void supersede(ValueInfo& value) noexcept { value.superseded = true; }
  // Those of its version that `overlaps` says so of, `newest` itself left out.
  template <typename Overlaps>
  void supersede_others(const ValueInfo& newest, Overlaps&& overlaps) {
    const auto it = storages_.find(newest.record.storage);
    if (it == storages_.end()) return;
    for (std::uint32_t link = it->second.head; link != 0; link = slot(link).next) {
      ValueInfo& other = slot(link);
      if (&other != &newest && other.record.version == newest.record.version && overlaps(other)) supersede(other);
    }
  }
  // Keeps record and hides an older value with the same key. Strong exception guarantee. A value of storage 0 has no
  // identity: it is kept only until end_event().
  ValueInfo& add(ValueRecord record, DType dtype, std::uint64_t row_batch);
  // Every value that is known.
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (auto& [storage, entry] : storages_) {
      for (std::uint32_t link = entry.head; link != 0; link = slot(link).next) visit(slot(link));
    }
  }
  // The storage's use counts for eviction.
  void touch(std::uint64_t storage, std::uint64_t now);

  // Forgets what later events cannot name: values without identity, old versions, surplus views.
  void end_event() noexcept;

  struct Released {
    bool known = false;
    // Some row of the storage lies in a batch numbered `first_batch` or lower, so the file must be told of the end.
    bool has_rows = false;
    std::uint64_t first_batch = 0;
  };
  Released release(std::uint64_t storage);
  bool over_limit() const { return storages_.size() > limits_.storages; }
  // Storages to forget when over the limit: the less recently used half, in ascending order.
  std::vector<std::uint64_t> least_recently_used() const;

  std::size_t storages() const { return storages_.size(); }
  std::size_t values() const { return slots_.size() - free_.size(); }

 private:
  struct StorageEntry {
    std::uint32_t head = 0;  // slot + 1
    std::uint32_t count = 0;
    std::uint32_t newest_version = 0;
    std::uint64_t last_use = 0;
    std::uint64_t forgotten_row = 0;  // lowest row_batch among forgotten values that had a row, 0: none
  };
  ValueInfo& slot(std::uint32_t link) { return slots_[link - 1]; }
  void trim(std::uint64_t storage) noexcept;
  void free_slot(std::uint32_t link) noexcept;
  static void note_row(std::uint64_t& lowest, std::uint64_t row_batch);

  ValueTableLimits limits_;
  // Memory of its own: what is kept for long would lie between the blocks that the run allocates and frees in turn. The
  // program's default resource is not asked: it may end before this does.
  std::pmr::unsynchronized_pool_resource memory_{std::pmr::new_delete_resource()};
  std::pmr::deque<ValueInfo> slots_{&memory_};
  std::vector<std::uint32_t> free_;       // links; capacity is kept at slots_.size() so that freeing never allocates
  std::vector<std::uint32_t> anonymous_;  // values of storage 0 of this event
  std::vector<std::uint64_t> untrimmed_;  // storages that may hold too much
  std::pmr::unordered_map<std::uint64_t, StorageEntry> storages_{&memory_};
};

}  // namespace nanhunt::record
