// SPDX-License-Identifier: Apache-2.0
// Hash map from non-zero 64-bit ids to small values, for the hot path: open addressing, no allocation per entry.
// Ids come from traces, so chains are bounded: an insert that would probe too far is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nanhunt::analyze {

template <typename T>
class FlatMap {
 public:
  FlatMap() { rehash(kMinSlots); }

  T* find(std::uint64_t key) {
    for (std::size_t i = home(key);; i = next(i)) {
      if (slots_[i].key == key) return key == 0 ? nullptr : &slots_[i].value;
      if (slots_[i].key == 0) return nullptr;
    }
  }

  // The value of `key`, made if missing. nullptr: key 0, or a collision chain that only a made-up trace has.
  T* insert(std::uint64_t key) {
    if (key == 0) return nullptr;
    std::size_t i = home(key), probes = 0;
    for (; slots_[i].key != 0; i = next(i), ++probes) {
      if (slots_[i].key == key) return &slots_[i].value;
    }
    if (probes > kMaxProbes) return nullptr;
    if ((size_ + 1) * 2 > slots_.size()) {
      rehash(slots_.size() * 2);
      for (i = home(key); slots_[i].key != 0;) i = next(i);
    }
    slots_[i].key = key;
    slots_[i].value = T{};
    ++size_;
    return &slots_[i].value;
  }

  void erase(std::uint64_t key) {
    std::size_t i = home(key);
    while (slots_[i].key != key) {
      if (slots_[i].key == 0) return;
      i = next(i);
    }
    if (key == 0) return;
    // Close the gap: move back every later entry of the run that may stand here.
    for (std::size_t j = next(i); slots_[j].key != 0; j = next(j)) {
      const std::size_t want = home(slots_[j].key);
      const bool stays = i <= j ? (i < want && want <= j) : (i < want || want <= j);
      if (stays) continue;
      slots_[i] = std::move(slots_[j]);
      i = j;
    }
    slots_[i] = Slot{};
    --size_;
  }

  // Soon to be looked up: its memory may come near meanwhile.
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&slots_[home(key)]); }

  std::size_t size() const { return size_; }

  template <typename F>
  void for_each(F&& f) {
    for (Slot& slot : slots_) {
      if (slot.key != 0) f(slot.key, slot.value);
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    T value{};
  };
  static constexpr std::size_t kMinSlots = 64;
  static constexpr std::size_t kMaxProbes = 4096;

  // Neighbouring ids are neighbours here too (ids mostly come in order), eight at a time so that runs stay short.
  std::size_t home(std::uint64_t key) const {
    return static_cast<std::size_t>(((key >> 3) * 0x9E3779B97F4A7C15ull) >> shift_) * 8 + (key & 7);
  }
  std::size_t next(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void rehash(std::size_t slots) {
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(slots);
    shift_ = 64;
    for (std::size_t n = slots / 8; n > 1; n /= 2) --shift_;
    for (Slot& slot : old) {
      if (slot.key == 0) continue;
      std::size_t i = home(slot.key);
      while (slots_[i].key != 0) i = next(i);
      slots_[i] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
  int shift_ = 61;
};

}  // namespace nanhunt::analyze
