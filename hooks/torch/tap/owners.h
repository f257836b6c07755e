// SPDX-License-Identifier: Apache-2.0
// Whose parameter, gradient or state a storage is, while an optimizer runs: what it computes belongs to a parameter. Who
// that is, is looked for where somebody reads it: rows that stay in the ring say in which list to look.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/identity.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

class Owners {
 public:
  // Storages, by number, and the texts of their owners.
  using List = std::vector<std::pair<std::int64_t, std::int64_t>>;

  // From here on these are. None: nobody owns anything. `keeps`: rows stay that may name lists of before.
  void set(List list, bool keeps) {
    if (!keeps) lists_.clear();
    if (list.empty()) {
      now_ = -1;
      return;
    }
    lists_.push_back({std::move(list), {}, false});
    now_ = static_cast<std::int64_t>(lists_.size()) - 1;
  }
  void begin_step() {
    lists_.clear();
    now_ = -1;
  }
  bool is_empty() const { return now_ < 0; }

  // Stands for the owner in a row that stays in the ring.
  std::int64_t later() const { return kLater - now_; }
  static bool is_later(std::int64_t path) { return path <= kLater; }
  std::int64_t of_later(std::int64_t path, const std::int64_t* words, std::size_t inputs, std::size_t size) {
    return find(lists_[static_cast<std::size_t>(kLater - path)], words, inputs, size);
  }

  // The parameter to which what an optimizer computes belongs; 0: to none, or to several.
  std::int64_t of(const Words& words, std::size_t inputs) {
    return is_empty() ? 0 : find(lists_[static_cast<std::size_t>(now_)], words.data(), inputs, words.size());
  }

 private:
  static constexpr std::int64_t kLater = -2;
  struct Known {
    List list;
    std::unordered_map<std::int64_t, std::int64_t> owner;  // by storage; and of what was made of these
    bool is_built;
  };

  static std::int64_t find(Known& known, const std::int64_t* words, std::size_t inputs, std::size_t size) {
    if (!known.is_built) {
      known.owner = {known.list.begin(), known.list.end()};
      known.is_built = true;
    }
    std::int64_t owner = 0;
    for (std::size_t at = 1; at < inputs; at += kValueWords) {
      const auto other = known.owner.find(words[at] >> kVersionBits);
      if (other == known.owner.end() || other->second == 0 || other->second == owner) continue;
      if (owner != 0) return 0;
      owner = other->second;
    }
    if (owner != 0)
      for (std::size_t at = inputs + 1; at < size; at += kValueWords)
        known.owner.try_emplace(words[at] >> kVersionBits, owner);
    return owner;
  }

  std::vector<Known> lists_;  // of this step
  std::int64_t now_ = -1;
};

}  // namespace nanhunt::tap
