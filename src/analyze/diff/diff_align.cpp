// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/diff/diff_align.h"

#include <algorithm>
#include <unordered_map>

namespace nanhunt::analyze {
namespace {

using Index = std::int32_t;

// Myers 1986: the furthest point reached on each diagonal k = x - y with d edits, kept for each d so that the way can
// be traced back. nullopt-like: false when kMaxEdits were not enough.
bool shortest_edit(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b, Index shift_a, Index shift_b,
                   std::vector<Index>& b_of_a) {
  const auto n = static_cast<Index>(a.size()), m = static_cast<Index>(b.size());
  const auto most = static_cast<Index>(std::min(kMaxEdits, a.size() + b.size()));
  std::vector<std::vector<Index>> reached;  // [d][k + d]
  const auto from = [&](Index d, Index k) {  // x before the snake on diagonal k of round d
    if (d == 0) return Index{0};
    const std::vector<Index>& last = reached[static_cast<std::size_t>(d - 1)];
    const auto at = [&](Index diagonal) { return last[static_cast<std::size_t>(diagonal + d - 1)]; };
    const bool down = k == -d || (k != d && at(k - 1) < at(k + 1));
    return down ? at(k + 1) : at(k - 1) + 1;
  };
  for (Index d = 0; d <= most; ++d) {
    std::vector<Index> now(static_cast<std::size_t>(2 * d + 1), -1);
    for (Index k = -d; k <= d; k += 2) {
      Index x = from(d, k);
      while (x < n && x - k < m && x - k >= 0 && a[static_cast<std::size_t>(x)] == b[static_cast<std::size_t>(x - k)])
        ++x;
      now[static_cast<std::size_t>(k + d)] = x;
      if (x < n || x - k < m) continue;
      // Back from the end: every step along a diagonal is a match.
      Index end = x;
      for (Index round = d, diagonal = k;; --round) {
        const Index start = from(round, diagonal);
        for (Index i = start; i < end; ++i) b_of_a[static_cast<std::size_t>(shift_a + i)] = shift_b + i - diagonal;
        if (round == 0) return true;
        const std::vector<Index>& last = reached[static_cast<std::size_t>(round - 1)];
        const auto at = [&](Index which) { return last[static_cast<std::size_t>(which + round - 1)]; };
        const bool down = diagonal == -round || (diagonal != round && at(diagonal - 1) < at(diagonal + 1));
        diagonal += down ? 1 : -1;
        end = at(diagonal);
      }
    }
    reached.push_back(std::move(now));
  }
  return false;
}

}  // namespace

Alignment align(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) {
  Alignment out;
  out.b_of_a.assign(a.size(), kUnmatched);
  std::size_t prefix = 0, suffix = 0;
  const std::size_t shorter = std::min(a.size(), b.size());
  for (; prefix < shorter && a[prefix] == b[prefix]; ++prefix) out.b_of_a[prefix] = static_cast<Index>(prefix);
  for (; suffix < shorter - prefix && a[a.size() - 1 - suffix] == b[b.size() - 1 - suffix]; ++suffix) {
    out.b_of_a[a.size() - 1 - suffix] = static_cast<Index>(b.size() - 1 - suffix);
  }
  const auto middle_a = a.subspan(prefix, a.size() - prefix - suffix);
  const auto middle_b = b.subspan(prefix, b.size() - prefix - suffix);
  if (middle_a.empty() || middle_b.empty()) return out;
  const auto shift = static_cast<Index>(prefix);
  if (shortest_edit(middle_a, middle_b, shift, shift, out.b_of_a)) return out;
  out.exact = false;
  std::unordered_map<std::uint32_t, std::vector<Index>> places;  // in b, latest first; looked up only
  for (std::size_t i = middle_b.size(); i-- > 0;) places[middle_b[i]].push_back(shift + static_cast<Index>(i));
  for (std::size_t i = 0; i < middle_a.size(); ++i) {
    const auto found = places.find(middle_a[i]);
    if (found == places.end() || found->second.empty()) continue;
    out.b_of_a[prefix + i] = found->second.back();
    found->second.pop_back();
  }
  return out;
}

}  // namespace nanhunt::analyze
