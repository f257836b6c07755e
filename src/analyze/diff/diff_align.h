// SPDX-License-Identifier: Apache-2.0
// Which entries of two sequences are the same: the longest common subsequence where the sequences differ little,
// occurrence by occurrence where they differ much. Linear memory, time bounded by kMaxEdits passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nanhunt::analyze {

inline constexpr std::size_t kMaxEdits = 256;
inline constexpr std::int32_t kUnmatched = -1;

struct Alignment {
  std::vector<std::int32_t> b_of_a;  // for each entry of a: its partner in b, or kUnmatched
  bool exact = true;                 // false: more than kMaxEdits insertions and deletions
};

Alignment align(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b);

}  // namespace nanhunt::analyze
