// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::fleet {
namespace {

constexpr std::size_t kMostPlaces = 8;  // of one dimension, in one description

// The places of all ranks along one dimension.
struct Dimension {
  std::string name;
  std::vector<std::string> values;
  std::vector<std::uint32_t> at;         // by rank: index of its value, or kNowhere
  std::vector<std::size_t> total, hits;  // by value: ranks there, and of them those in the set
};
constexpr std::uint32_t kNowhere = UINT32_MAX;

struct Candidate {
  double cost = 0;
  std::size_t order = 0;  // of candidates that cost the same, the first wins
  ShapeKind kind = ShapeKind::kNone;
  std::vector<Place> places;
  std::vector<std::size_t> members;  // indices of ranks, ascending
};

// Are these all among those? Of none: no.
bool holds(const std::vector<Place>& those, const std::vector<Place>& these) {
  return !these.empty() && std::all_of(these.begin(), these.end(), [&](const Place& place) {
    return std::find(those.begin(), those.end(), place) != those.end();
  });
}

class ShapeSearch {
 public:
  ShapeSearch(const std::vector<Digest>& ranks, const std::vector<bool>& in) : ranks_(ranks), in_(in) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (in[i]) set_.push_back(i);
    }
    per_rank_ = std::log2(static_cast<double>(ranks.size()) + 1);
  }

  Shape run() {
    Shape shape;
    shape.ranks = set_.size();
    if (set_.empty()) return shape;
    add_dimensions();
    // A short list is a description too.
    const bool one = set_.size() == 1;  // is named, whatever describes it as well
    propose(one ? ShapeKind::kOne : ShapeKind::kList, {}, set_, one ? 0 : static_cast<double>(set_.size()) * per_rank_);
    std::vector<std::size_t> all(ranks_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    if (ranks_.size() > 1) propose(ShapeKind::kAll, {}, std::move(all), 1);
    for (std::size_t d = 0; d < dimensions_.size(); ++d) add_groups(d);
    for (std::size_t a = 0; a < dimensions_.size(); ++a) {
      for (std::size_t b = a + 1; b < dimensions_.size(); ++b) add_crossings(a, b);
    }
    return conclude(std::move(shape));
  }

 private:
  void add_dimensions() {
    std::map<std::string, std::size_t> counts;  // ranks that have it
    for (const Digest& one : ranks_) {
      for (const auto& [name, place] : one.coordinates) ++counts[name];
    }
    std::vector<std::string> names;  // of most ranks: what others call by a name of their own describes nobody
    for (const auto& [name, count] : counts) {
      if (2 * count > ranks_.size() && names.size() < kMaxCoordinates) names.push_back(name);
    }
    for (const std::string& name : names) {
      add_dimension(name, [&](const Digest& one) -> std::optional<std::string> {
        const auto at = one.coordinates.find(name);
        return at == one.coordinates.end() ? std::nullopt : std::optional(std::to_string(at->second));
      });
    }
    const auto text = [](const std::string& of) { return of.empty() ? std::nullopt : std::optional(of); };
    add_dimension("host", [&](const Digest& one) { return text(one.host); });
    add_dimension("accelerator", [&](const Digest& one) { return text(one.accelerator_name); });
    add_dimension("nanhunt", [&](const Digest& one) { return text(one.nanhunt); });
    add_dimension("framework", [&](const Digest& one) { return text(one.framework); });
  }

  template <typename F>
  void add_dimension(std::string name, F&& value_of) {
    Dimension d;
    d.name = std::move(name);
    std::unordered_map<std::string, std::uint32_t> known;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::optional<std::string> value = value_of(ranks_[i]);
      if (!value) {
        d.at.push_back(kNowhere);
        continue;
      }
      const auto [at, added] = known.try_emplace(*value, static_cast<std::uint32_t>(d.values.size()));
      if (added) {
        d.values.push_back(*value);
        d.total.push_back(0);
        d.hits.push_back(0);
      }
      d.at.push_back(at->second);
      ++d.total[at->second];
      d.hits[at->second] += in_[i] ? 1 : 0;
    }
    // One place for all tells nobody apart; a place for each says no more than its rank.
    if (d.values.size() > 1 && d.values.size() < ranks_.size()) dimensions_.push_back(std::move(d));
  }

  double bits(const Dimension& d) const {
    return std::log2(static_cast<double>(dimensions_.size() + 1)) + std::log2(static_cast<double>(d.values.size()));
  }

  // What the description costs with the ranks that it gets wrong.
  void propose(ShapeKind kind, std::vector<Place> places, std::vector<std::size_t> members, double cost) {
    std::size_t hits = 0;
    for (const std::size_t i : members) hits += in_[i] ? 1 : 0;
    const std::size_t wrong = (members.size() - hits) + (set_.size() - hits);
    if (kind == ShapeKind::kGroup && hits == 0) return;
    cost += static_cast<double>(wrong) * (per_rank_ + 1);
    candidates_.push_back({cost, candidates_.size(), kind, std::move(places), std::move(members)});
  }

  std::vector<std::size_t> members_at(const Dimension& d, const std::set<std::uint32_t>& values) const {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (d.at[i] != kNowhere && values.contains(d.at[i])) members.push_back(i);
    }
    return members;
  }

  void add_groups(std::size_t index) {
    const Dimension& d = dimensions_[index];
    // The place that most of the set is at; then all places that are mostly in it.
    std::uint32_t best = 0;
    std::set<std::uint32_t> most;
    for (std::uint32_t v = 0; v < d.values.size(); ++v) {
      const auto right = [&](std::uint32_t of) { return 2 * static_cast<double>(d.hits[of]) - static_cast<double>(d.total[of]); };
      if (right(v) > right(best)) best = v;
      if (2 * d.hits[v] > d.total[v]) most.insert(v);
    }
    propose(ShapeKind::kGroup, {{d.name, d.values[best]}}, members_at(d, {best}), bits(d));
    if (most.size() < 2 || most.size() > kMostPlaces || most.size() == d.values.size()) return;
    std::vector<Place> places;
    for (const std::uint32_t v : most) places.push_back({d.name, d.values[v]});
    propose(ShapeKind::kGroup, std::move(places), members_at(d, most), static_cast<double>(most.size()) * bits(d));
  }

  // Ranks at one place along each of two dimensions.
  void add_crossings(std::size_t a, std::size_t b) {
    const Dimension &one = dimensions_[a], &other = dimensions_[b];
    struct Count {
      std::size_t total = 0, hits = 0;
    };
    std::map<std::pair<std::uint32_t, std::uint32_t>, Count> counts;
    for (const std::size_t i : set_) {
      if (one.at[i] != kNowhere && other.at[i] != kNowhere) ++counts[{one.at[i], other.at[i]}].hits;
    }
    if (counts.empty()) return;
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& x, const auto& y) { return x.second.hits < y.second.hits; });
    if (2 * best->second.hits <= set_.size()) return;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (one.at[i] == best->first.first && other.at[i] == best->first.second) members.push_back(i);
    }
    propose(ShapeKind::kGroup, {{one.name, one.values[best->first.first]}, {other.name, other.values[best->first.second]}},
            std::move(members), bits(one) + bits(other));
  }

  Shape conclude(Shape shape) {
    const auto better = [](const Candidate& x, const Candidate& y) {
      return std::tuple(x.cost, x.order) < std::tuple(y.cost, y.order);
    };
    const Candidate& best = *std::min_element(candidates_.begin(), candidates_.end(), better);
    shape.kind = best.kind;
    shape.places = best.places;
    shape.of = best.members.size();
    std::vector<bool> member(ranks_.size(), false);
    for (const std::size_t i : best.members) {
      member[i] = true;
      if (!in_[i]) shape.but.push_back(ranks_[i].rank);
    }
    for (const std::size_t i : set_) {
      if (!member[i]) shape.besides.push_back(ranks_[i].rank);
    }
    for (const Candidate& other : candidates_) {
      if (other.kind != ShapeKind::kGroup || other.members != best.members || other.places == best.places) continue;
      if (best.kind == ShapeKind::kOne && other.places.size() > 1) continue;  // any rank is where some dimensions cross
      // A crossing of which one part says it all adds nothing.
      const bool longer = std::any_of(shape.also.begin(), shape.also.end(), [&](const auto& known) { return holds(other.places, known); });
      if (!longer && !holds(other.places, best.places)) shape.also.push_back(other.places);
    }
    return shape;
  }

  const std::vector<Digest>& ranks_;
  const std::vector<bool>& in_;
  std::vector<std::size_t> set_;
  double per_rank_ = 1;
  std::vector<Dimension> dimensions_;
  std::vector<Candidate> candidates_;
};

// "pipeline stage 3", "host n17", "tensor-parallel rank 1".
std::string place_text(const Place& place) {
  static const std::map<std::string, std::string, std::less<>> kWords = {
      {"data", "data-parallel rank"}, {"tensor", "tensor-parallel rank"}, {"pipeline", "pipeline stage"},
      {"context", "context-parallel rank"}, {"expert", "expert-parallel rank"}, {"accelerator", "accelerator"}};
  const auto word = kWords.find(place.dimension);
  return fmt::format("{} {}", word == kWords.end() ? place.dimension : word->second, place.value);
}

}  // namespace

std::string_view shape_kind_name(ShapeKind kind) {
  switch (kind) {
    case ShapeKind::kNone: return "none";
    case ShapeKind::kAll: return "all";
    case ShapeKind::kOne: return "one";
    case ShapeKind::kGroup: return "group";
    case ShapeKind::kList: return "list";
  }
  return "unknown";
}

std::string places_text(const std::vector<Place>& places) {
  std::vector<std::string> texts;
  const bool one_dimension = std::all_of(places.begin(), places.end(), [&](const Place& p) { return p.dimension == places.front().dimension; });
  for (std::size_t i = 0; i < places.size(); ++i) texts.push_back(one_dimension && i > 0 ? places[i].value : place_text(places[i]));
  return analyze::join(texts, kMostPlaces, one_dimension ? " and " : ", ");
}

std::vector<RankRange> ranges_of(const std::vector<std::uint32_t>& ranks, std::size_t most) {
  std::vector<RankRange> ranges;
  for (const std::uint32_t rank : ranks) {
    const bool follows = !ranges.empty() && rank == ranges.back().second + 1;
    if (follows) {
      ranges.back().second = rank;
    } else if (ranges.size() == most) {
      break;
    } else {
      ranges.emplace_back(rank, rank);
    }
  }
  return ranges;
}

std::string ranges_text(const std::vector<RankRange>& ranges, std::uint64_t all) {
  std::vector<std::string> texts;
  std::uint64_t shown = 0;
  for (const auto& [first, last] : ranges) {
    const std::uint64_t ranks = std::uint64_t{last} - first + 1;
    shown += ranks;
    if (ranks > 2) {
      texts.push_back(fmt::format("{}-{}", first, last));
      continue;
    }
    texts.push_back(std::to_string(first));
    if (ranks == 2) texts.push_back(std::to_string(last));
  }
  std::string text = all == 1 ? "rank " : "ranks ";
  if (all > shown) return text + fmt::format("{} and {} more", fmt::join(texts, ", "), all - shown);
  return text + analyze::join(texts, texts.size());
}

std::string shape_text(const Shape& shape, const std::vector<std::uint32_t>& numbers) {
  std::string text;
  switch (shape.kind) {
    case ShapeKind::kNone: return "no rank";
    case ShapeKind::kAll: text = fmt::format("all {} ranks", shape.of); break;
    case ShapeKind::kOne: return fmt::format("rank {} alone", numbers.front());
    case ShapeKind::kGroup:
      text = shape.of == 1 ? fmt::format("the rank of {}", places_text(shape.places))
                           : fmt::format("all {} ranks of {}", shape.of, places_text(shape.places));
      break;
    case ShapeKind::kList: return analyze::ranks_text(numbers);
  }
  if (!shape.but.empty()) text += fmt::format(" but {}", analyze::ranks_text(shape.but));
  if (!shape.besides.empty()) text += fmt::format(" and {}", analyze::ranks_text(shape.besides));
  return text;
}

Shape find_shape(const std::vector<Digest>& ranks, const std::vector<bool>& in) { return ShapeSearch(ranks, in).run(); }

}  // namespace nanhunt::fleet
