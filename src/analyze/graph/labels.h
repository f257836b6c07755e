// SPDX-License-Identifier: Apache-2.0
// Sets of origins, interned: most bad values of a step carry the same few sets. A set keeps its 16 earliest members
// and then only knows that there are more.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {

inline constexpr std::size_t kMaxLabels = 16;

class LabelSets {
 public:
  struct Set {
    std::vector<BirthId> births;  // ascending, at most kMaxLabels
    bool many = false;            // there were more
    // Kept by users of the set so that work on it is done once; see ValueGraph.
    bool settled = false, saw_inf = false, saw_nan = false;
  };

  LabelSets() : sets_(1) {}
  LabelSetId of(BirthId birth);
  LabelSetId merge(LabelSetId a, LabelSetId b);
  Set& get(LabelSetId id) { return sets_[id]; }
  bool contains(LabelSetId id, BirthId birth) const;
  std::size_t size() const { return sets_.size(); }

  // Drops every set that is not marked. Returns the new id of each old one.
  std::vector<LabelSetId> keep(const std::vector<bool>& marked);

 private:
  LabelSetId intern(std::vector<BirthId> births, bool many);

  std::vector<Set> sets_;  // sets_[0] is the empty set
  std::map<std::pair<std::vector<BirthId>, bool>, LabelSetId> ids_;
  std::unordered_map<std::uint64_t, LabelSetId> merged_;  // a << 32 | b with a < b; looked up only, never listed
};

}  // namespace nanhunt::analyze
