// SPDX-License-Identifier: Apache-2.0
// Which contents a tensor shows, and what part of them. A word is storage << 24 | version, as rows have it. Views, `detach`, `.data` and saved
// tensors share the storage and so the number; a storage that takes over the memory of a dead one has none yet: the
// table keeps a weak reference, so the address of one that it knows is not given away before it was told of its end.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nanhunt::tap {

inline constexpr int kVersionBits = 24;

// What part of its storage a tensor shows, and as what.
struct Shown {
  std::int64_t offset;
  caffe2::TypeMeta dtype;
  std::vector<std::int64_t> sizes, strides;

  explicit Shown(const at::Tensor& t)
      : offset(t.storage_offset()), dtype(t.dtype()), sizes(t.sizes().vec()), strides(t.strides().vec()) {}
  bool is_shown_by(const at::Tensor& t) const {
    return offset == t.storage_offset() && dtype == t.dtype() && t.sizes() == c10::IntArrayRef(sizes) &&
           t.strides() == c10::IntArrayRef(strides);
  }
};

class Unwritten;

struct Identity {
  std::int64_t word = 0;
  std::int64_t as_of = -1;  // torch's version of the contents that the word stands for, where that was looked at
  bool made = false;        // by an op that was heard
  bool sought = false;      // it was not, and was looked for among what was left bad
  std::int64_t unwritten = -1;  // the word of memory that was given out and holds nothing yet
  std::shared_ptr<Unwritten> gaps;  // what of it holds nothing yet; none: all was written, as far as that is known
  bool by_rows = false;     // a large table: an op wrote a few of its rows, and from then on it is read as a whole now and then
  // Of all of its memory: for which word it was looked at, and whether there is a NaN or an infinity (finite.h).
  std::int64_t looked_at = -1;
  std::uint8_t bad = 0;
  double amax = -1;        // the largest magnitude, where all are finite and that is known
  std::int64_t step = -1;  // in which it was looked at

  std::int64_t finite_from = -1, finite_to = -1;  // words for which there was none

  bool is_unwritten() const { return unwritten == word; }
  bool is_looked_at() const { return looked_at == word; }
  bool is_finite() const { return looked_at == word && bad == 0; }
  bool was_finite(std::int64_t then) const { return then >= finite_from && then <= finite_to && finite_to >= 0; }
  void note_bad(std::uint8_t bits, double largest = -1) {
    looked_at = word;
    bad = bits;
    amax = largest;
    if (bits != 0) return;
    if (finite_to < 0 || finite_to < word - 1) finite_from = word;
    finite_to = word;
  }
};

inline std::atomic<std::int64_t>& last_storage() {
  static std::atomic<std::int64_t> last{0};
  return last;
}
inline std::int64_t last_storage_number() { return last_storage(); }
inline std::int64_t new_storage_number() { return ++last_storage(); }

class Identities {
 public:
  Identity& of(c10::StorageImpl* storage) {
    const auto known = table_.find(storage);
    if (known != table_.end()) return *known->second.identity;
    auto identity = std::make_shared<Identity>();
    identity->word = new_storage_number() << kVersionBits;
    ++births_;
    return *table_.emplace(storage, Entry{weak(storage), std::move(identity)}).first->second.identity;
  }

  const Identity* find(c10::StorageImpl* storage) const {
    const auto known = table_.find(storage);
    return known == table_.end() ? nullptr : known->second.identity.get();
  }
  Identity* find(c10::StorageImpl* storage) {
    const auto known = table_.find(storage);
    return known == table_.end() ? nullptr : known->second.identity.get();
  }

  // Of a storage that is known.
  std::weak_ptr<Identity> weak_of(c10::StorageImpl* storage) const {
    const auto known = table_.find(storage);
    return known == table_.end() ? std::weak_ptr<Identity>{} : std::weak_ptr<Identity>(known->second.identity);
  }

  // The number of a tensor's storage; 0: not known.
  std::int64_t number_of(const at::Tensor& t) const {
    const Identity* const known = t.has_storage() ? find(t.storage().unsafeGetStorageImpl()) : nullptr;
    return known == nullptr ? 0 : known->word >> kVersionBits;
  }

  // The storage was written: the word of the contents now.
  std::int64_t bump(Identity& identity) {
    identity.gaps.reset();
    const std::int64_t word = identity.word + 1;
    const bool used_up = (word & ((std::int64_t{1} << kVersionBits) - 1)) == 0;
    return used_up ? renumber(identity) : identity.word = word;
  }
  // From now on it is as if it were another storage.
  std::int64_t renumber(Identity& identity) {
    dead_.push_back(identity.word >> kVersionBits);
    return identity.word = new_storage_number() << kVersionBits;
  }

  // Storages that live, by number. They do as long as this does.
  struct Living {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<const Identity> identity;

    // It has that address.
    bool holds(std::int64_t address) const {
      const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(storage->data()));
      return begin != 0 && address >= begin && address <= begin + static_cast<std::int64_t>(storage->nbytes());
    }
  };
  using Alive = std::unordered_map<std::int64_t, Living>;
  Alive alive() const {
    Alive all;
    all.reserve(table_.size());
    for (const auto& [address, entry] : table_)
      if (auto storage = entry.storage.lock())
        all.try_emplace(entry.identity->word >> kVersionBits, Living{std::move(storage), entry.identity});
    return all;
  }

  // Enough have come since the dead were looked for: looking costs in proportion to those that live.
  bool is_sweep_due() const { return births_ > std::max<std::size_t>(64, table_.size() / 2); }

  // Whatever is known may have been written unheard: all get new numbers. The old ones are among the dead.
  void forget() {
    for (const auto& [storage, entry] : table_) dead_.push_back(entry.identity->word >> kVersionBits);
    table_.clear();
  }

  // Numbers of storages that ended since the last call.
  std::vector<std::int64_t> take_dead() {
    for (auto it = table_.begin(); it != table_.end();) {
      if (!it->second.storage.expired()) {
        ++it;
        continue;
      }
      if (it->second.identity.use_count() == 1) dead_.push_back(it->second.identity->word >> kVersionBits);
      it = table_.erase(it);
    }
    births_ = 0;
    return std::exchange(dead_, {});
  }

  static c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* storage) {
    return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<Identity> identity;
  };

  ska::flat_hash_map<c10::StorageImpl*, Entry> table_;
  std::vector<std::int64_t> dead_;
  std::size_t births_ = 0;  // since the last sweep
};

}  // namespace nanhunt::tap
