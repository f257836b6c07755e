// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/labels.h"

#include <algorithm>
#include <iterator>

namespace nanhunt::analyze {

LabelSetId LabelSets::intern(std::vector<BirthId> births, bool many) {
  if (births.size() > kMaxLabels) {
    births.resize(kMaxLabels);
    many = true;
  }
  const auto [it, added] = ids_.try_emplace({std::move(births), many}, static_cast<LabelSetId>(sets_.size()));
  if (added) {
    Set set;
    set.births = it->first.first;
    set.many = many;
    sets_.push_back(std::move(set));
  }
  return it->second;
}

LabelSetId LabelSets::of(BirthId birth) { return intern({birth}, false); }

LabelSetId LabelSets::merge(LabelSetId a, LabelSetId b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  if (a > b) std::swap(a, b);
  const std::uint64_t key = std::uint64_t{a} << 32 | b;
  if (const auto it = merged_.find(key); it != merged_.end()) return it->second;
  std::vector<BirthId> births;
  std::set_union(sets_[a].births.begin(), sets_[a].births.end(), sets_[b].births.begin(), sets_[b].births.end(),
                 std::back_inserter(births));
  const LabelSetId id = intern(std::move(births), sets_[a].many || sets_[b].many);
  merged_.emplace(key, id);
  return id;
}

bool LabelSets::contains(LabelSetId id, BirthId birth) const {
  const auto& births = sets_[id].births;
  return std::binary_search(births.begin(), births.end(), birth);
}

std::vector<LabelSetId> LabelSets::keep(const std::vector<bool>& marked) {
  std::vector<LabelSetId> new_ids(sets_.size(), 0);
  std::vector<Set> kept(1);
  ids_.clear();
  merged_.clear();
  for (LabelSetId id = 1; id < sets_.size(); ++id) {
    if (!marked[id]) continue;
    new_ids[id] = static_cast<LabelSetId>(kept.size());
    ids_.emplace(std::pair(sets_[id].births, sets_[id].many), new_ids[id]);
    kept.push_back(std::move(sets_[id]));
  }
  sets_ = std::move(kept);
  return new_ids;
}

}  // namespace nanhunt::analyze
