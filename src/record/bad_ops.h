// SPDX-License-Identifier: Apache-2.0
// Which ops had bad results, and whose the kernels of a launch for many ops are. Of the newest, within bounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>

namespace nanhunt::record {

class BadOps {
 public:
  // Bounds, of which the older half gives way. A launch for more ops than that may be taken for its first op's.
  static constexpr std::size_t kMostOps = std::size_t{1} << 15, kMostLaunches = 4096;

  // Ops come in their order.
  void add(std::uint64_t seq) {
    if (seqs_.size() >= kMostOps) seqs_.erase(seqs_.begin(), seqs_.begin() + kMostOps / 2);
    seqs_.push_back(seq);
  }
  // Ops from `seq` on have never been.
  void forget_from(std::uint64_t seq) {
    seqs_.erase(std::lower_bound(seqs_.begin(), seqs_.end(), seq), seqs_.end());
    launches_.erase(launches_.lower_bound(seq), launches_.end());
  }
  // How many from op `seq` on, of those that are known.
  std::uint64_t since(std::uint64_t seq) const {
    return static_cast<std::uint64_t>(seqs_.end() - std::lower_bound(seqs_.begin(), seqs_.end(), seq));
  }
  // One launch was for `count` ops from `first` on, all of which came before.
  void bind(std::uint64_t first, std::uint64_t count) {
    const auto bad = std::lower_bound(seqs_.begin(), seqs_.end(), first);
    if (bad == seqs_.end() || *bad == first || *bad - first >= count) return;
    if (launches_.size() >= kMostLaunches) {
      launches_.erase(launches_.begin(), std::next(launches_.begin(), kMostLaunches / 2));
    }
    launches_[first] = *bad;
  }
  // Whose the kernels are that were launched for `first`.
  std::uint64_t op_of(std::uint64_t first) const {
    const auto known = launches_.find(first);
    return known == launches_.end() ? first : known->second;
  }

 private:
  std::deque<std::uint64_t> seqs_;
  std::map<std::uint64_t, std::uint64_t> launches_;  // by first op: the first bad one, where that is another
};

}  // namespace nanhunt::record
