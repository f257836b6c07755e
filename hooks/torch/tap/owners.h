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
#include "hooks/torch/tap/tensor_set.h"

namespace nanhunt::tap {

class Owners {
 public:
  // From here on these and their gradients are. Null: nobody owns anything. `keeps`: rows stay that may name lists of
  // before.
  void set(SharedTensorSet owned, bool keeps) {
    if (!keeps) lists_.clear();
    if (owned == nullptr) {
      now_ = -1;
      return;
    }
    lists_.push_back({std::move(owned), {}});
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
  std::int64_t of_later(std::int64_t path, const std::int64_t* words, std::size_t inputs, std::size_t size,
                        const Identities& identities) {
    const auto at = static_cast<std::size_t>(kLater - path);
    return at < lists_.size() ? find(lists_[at], words, inputs, size, identities) : 0;
  }

  // The parameter to which what an optimizer computes belongs; 0: to none, or to several.
  std::int64_t of(const Words& words, std::size_t inputs, const Identities& identities) {
    return is_empty() ? 0 : find(lists_[static_cast<std::size_t>(now_)], words.data(), inputs, words.size(), identities);
  }

 private:
  static constexpr std::int64_t kLater = -2;
  struct Known {
    SharedTensorSet owned;  // null: these are in `owner`
    std::unordered_map<std::int64_t, std::int64_t> owner;  // by storage; and of what was made of these
  };

  static std::int64_t find(Known& known, const std::int64_t* words, std::size_t inputs, std::size_t size,
                           const Identities& identities) {
    if (const SharedTensorSet owned = std::exchange(known.owned, nullptr))
      each_alive(*owned, [&](const at::Tensor& t, std::int64_t text) {
        known.owner.try_emplace(identities.number_of(t), text);
        if (const at::Tensor& gradient = gradient_of(t); gradient.defined()) known.owner.try_emplace(identities.number_of(gradient), text);
      });
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
