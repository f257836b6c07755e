// SPDX-License-Identifier: Apache-2.0
// The values of a trace that can still be used, by id, and the storages they live in. A value dies when its storage is
// freed or rewritten; the last kRecentDead dead ones stay readable, so that a slice can be walked back through them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "nanhunt/trace.h"
#include "src/analyze/stream/flat_map.h"

namespace nanhunt::analyze {

using LabelSetId = std::uint32_t;  // src/analyze/graph/labels.h; 0: no origin
using NodeId = std::uint32_t;      // src/analyze/graph/chain.h
using BirthId = std::uint32_t;     // src/analyze/graph/birth.h, in order of birth
inline constexpr NodeId kNoNode = 0xFFFFFFFFu;

// Which kinds of non-finite numbers.
enum BadKind : std::uint8_t { kBadNaN = 1, kBadPosInf = 2, kBadNegInf = 4 };
inline constexpr std::uint8_t kBadInf = kBadPosInf | kBadNegInf;
inline constexpr std::uint8_t kBadAny = kBadInf | kBadNaN;

// How sure it is that a value's infinities were written on purpose.
enum class Deliberate : std::uint8_t {
  kNo = 0,
  kLikely = 1,  // came from outside (batch, buffer, unwatched) as infinities alone: may be a mask
  kYes = 2,     // a watched op wrote them: masked_fill, full
};

// TensorStats without its heavy tail.
struct ValueStats {
  std::int64_t numel = 0, first_nonfinite = -1;
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, subnormal = 0;
  double amax = 0, amin_nonzero = 0, min = 0, max = 0, sum = 0, sum_sq = 0;
  StatsLevel level = StatsLevel::kFinite;
  bool any_nonfinite = false;

  std::int64_t inf() const { return pos_inf + neg_inf; }
  std::int64_t nonfinite() const { return nan + inf(); }
  bool counted() const { return level >= StatsLevel::kCounts; }
  // Numbers of which some are 0 and all others 1.
  bool is_mask() const {
    return counted() && nonfinite() == 0 && zero > 0 && zero < numel && min == 0 && max == 1 && amin_nonzero == 1;
  }
};
ValueStats compact(const TensorStats& stats);  // impossible counts of a damaged trace are clamped
TensorStats expand(const ValueStats& stats);

// Which elements of its storage a value lies in.
struct Extent {
  std::int64_t first = 0, end = 0;  // end is one past
  bool holds(const Extent& other) const { return first <= other.first && end >= other.end; }
};
Extent extent_of(std::int64_t offset, std::int64_t numel, const LayoutRecord* layout);  // nullptr: taken for dense

struct Value {
  ValueId id = 0, base = 0;
  std::uint64_t storage = 0, producer = kNoSeq;
  std::int64_t flushed = -1;
  ValueStats stats;
  Extent extent;
  std::uint32_t version = 0;
  std::uint32_t made_step = 0;        // by a watched op
  Phase made_in = Phase::kData;
  LayoutId layout = 0;
  StringId name = 0;      // from a mark, or inherited by an in-place write
  LabelSetId labels = 0;  // origins its badness descends from
  NodeId node = kNoNode;
  BirthId suspect = 0;    // a change that nobody saw, or memory never written, that it descends from; 0: none
  BirthId faded = 0;      // whose infinities an op made zeros of, which it holds; 0: none
  std::int32_t newer = -1, older = -1;  // neighbours in the storage's list
  std::uint8_t roles = 0;               // bit per TensorRole
  std::uint8_t bad = 0;                 // BadKind bits, from its own statistics
  Deliberate deliberate = Deliberate::kNo;
  bool has_stats = false;
  bool resolved = false;  // labels are final
  bool dead = false;

  bool has_role(TensorRole kind) const { return (roles >> static_cast<unsigned>(kind) & 1u) != 0; }
  void add_role(TensorRole kind) { roles = static_cast<std::uint8_t>(roles | 1u << static_cast<unsigned>(kind)); }
  // Contents were not read, but something bad may have flowed into them.
  bool tainted() const { return !has_stats && labels != 0; }
};

struct StorageInfo {
  std::int32_t oldest = -1, newest = -1;  // list of live values, in order of sight
  Extent seen;  // that any value so far lay in
  std::uint64_t maker = kNoSeq;  // the first op seen to write it
  // Badness of versions that are gone: what other views of a partly rewritten storage may still hold.
  LabelSetId residual_labels = 0;
  NodeId residual_node = kNoNode;
  Deliberate residual_deliberate = Deliberate::kNo;
  std::uint8_t residual_bad = 0;  // BadKind bits
  std::optional<StringId> parameter;  // the first one that is there
};

class ValueTable {
 public:
  Value* find(ValueId id);                   // valid until the next insert
  // nullptr: refused (id 0, or a restated id).
  Value* insert(const ValueRecord& record, const LayoutRecord* layout = nullptr);
  StorageInfo* storage(std::uint64_t id) { return storages_.find(id); }
  Value& at(std::int32_t slot) { return slots_[static_cast<std::size_t>(slot)]; }
  // The op that made its contents, also where they are seen through a view; kNoSeq: none was watched.
  std::uint64_t producer_of(const Value& value);

  // Values of the storage older than `version` die; `on_dead` sees each before.
  template <typename F>
  void retire(std::uint64_t storage_id, std::uint32_t version, F&& on_dead) {
    StorageInfo* info = storages_.find(storage_id);
    while (info != nullptr && info->oldest >= 0 && at(info->oldest).version < version) {
      const std::int32_t slot = info->oldest;
      on_dead(at(slot), *info);
      unlink(slot, *info);
      bury(slot);
    }
  }
  void free_storage(std::uint64_t storage_id);

  template <typename F>
  void for_each(F&& f) {
    for (Value& value : slots_) {
      if (value.id != 0) f(value);
    }
  }
  template <typename F>
  void for_each_storage(F&& f) {
    storages_.for_each([&](std::uint64_t, StorageInfo& info) { f(info); });
  }

  std::size_t size() const { return index_.size(); }
  std::uint64_t evicted() const { return evicted_; }  // live values given up to stay within kMaxLive

 private:
  static constexpr std::size_t kRecentDead = 1u << 13;
  static constexpr std::size_t kMaxLive = 1u << 21;

  void unlink(std::int32_t slot, StorageInfo& info);
  void bury(std::int32_t slot);  // to the dead, and the oldest dead out
  void evict_one();

  FlatMap<std::int32_t> index_;
  FlatMap<StorageInfo> storages_;
  std::vector<Value> slots_;
  std::vector<std::int32_t> free_;
  struct Dead {
    std::int32_t slot;
    ValueId id;
  };
  std::deque<Dead> dead_;  // oldest first
  std::size_t sweep_ = 0;
  std::uint64_t evicted_ = 0;
};

}  // namespace nanhunt::analyze
