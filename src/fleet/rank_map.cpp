// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/rank_map.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace nanhunt::fleet {
namespace {

constexpr std::array<RankStateWords, kRankStates> kStateWords = {{
    {"no digest", "The rank left no digest: what it did is not known."},
    {"another launch", "The rank left a digest of another launch alone, which is not looked at."},
    {"damaged digest", "The rank's digest cannot be read."},
    {"nothing recorded",
     "No step of the rank was recorded there: before it began, or after its last one. A digest counts "
     "its steps; they are taken for those up to its last."},
    {"clean", "No harmful NaN or Inf through these steps."},
    {"after the first harm",
     "Steps after the first harm on this rank. Its digest does not say step by step what they were."},
    {"warning", "Bad numbers began on this rank and did no harm: from the first to the last step that had them."},
    {"came from another rank",
     "The first bad numbers that came by a call between ranks. A digest keeps the first arrival alone."},
    {"replicas part",
     "The rank's parameters differ from those of ranks that hold the same ones: from the step at which it was seen."},
    {"began here", "A fault began on this rank: from the first to the last step that had it, not in each of them."},
}};

// The number that a text begins with, and the rest; texts that begin with none come last.
struct NaturalKey {
  std::uint64_t number = UINT64_MAX;
  std::string_view rest;
  auto operator<=>(const NaturalKey&) const = default;
};

NaturalKey natural_key(std::string_view text) {
  NaturalKey key{UINT64_MAX, text};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), key.number);
  if (read.ec == std::errc()) key.rest = text.substr(static_cast<std::size_t>(read.ptr - text.data()));
  return key;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "n9" before "n10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto head = [](std::string_view text) {
    return static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_digit) - text.begin());
  };
  std::string_view x = a, y = b;
  while (!x.empty() && !y.empty()) {
    const std::size_t n = head(x), m = head(y);
    if (x.substr(0, n) != y.substr(0, m)) return x.substr(0, n) < y.substr(0, m);
    const NaturalKey left = natural_key(x.substr(n)), right = natural_key(y.substr(m));
    if (left.number != right.number) return left.number < right.number;
    if (left.number == UINT64_MAX) return left.rest < right.rest;
    x = left.rest;
    y = right.rest;
  }
  return x.size() != y.size() ? x.size() < y.size() : a < b;
}

const std::vector<std::uint32_t>& found_ranks(const FleetVerdict& verdict) {
  if (!verdict.parting_leads) return verdict.ranks;
  return verdict.parting->minority.empty() ? verdict.parting->seen : verdict.parting->minority;
}

bool holds_rank(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

class MapMaker {
 public:
  explicit MapMaker(const FleetVerdict& verdict) : verdict_(verdict) {}

  RankMap run() {
    add_ranks();
    lay_out_columns();
    map_.groupings.push_back({"rank", {}, std::vector<std::uint32_t>(map_.ranks.size(), 0)});
    add_coordinates();
    add_grouping("host", [](const Digest& one) { return one.host.empty() ? std::nullopt : std::optional(one.host); });
    choose_grouping();
    return std::move(map_);
  }

 private:
  // Bands of a few ranks each would hide a shape that lies across them.
  void choose_grouping() {
    const std::vector<Place>& places = verdict_.shape.places;
    if (map_.ranks.size() <= kMaxMapBands || places.empty()) return;
    for (std::size_t i = 1; i < map_.groupings.size(); ++i) {
      if (map_.groupings[i].dimension == places.front().dimension) map_.first_grouping = i;
    }
  }

  // All ranks that left something, then as many of those that left nothing as there is room for.
  void add_ranks() {
    const Digests& digests = verdict_.digests;
    std::map<std::uint32_t, MapRank> ranks;
    for (const Digest& one : digests.ranks) {
      MapRank& rank = ranks[one.rank];
      rank.digest = &one;
      rank.spans = spans_of(one);
    }
    for (const std::uint32_t rank : digests.older) ranks[rank].absent = RankState::kOlder;
    for (const UnreadDigest& one : digests.unread) {
      if (one.rank) ranks[*one.rank].absent = RankState::kDamaged;
    }
    for (const std::uint32_t rank : digests.missing(kMaxMapRanks)) {
      if (ranks.size() < kMaxMapRanks) ranks[rank];
    }
    const std::uint64_t all = std::max<std::uint64_t>(ranks.size(), digests.world_size);
    const std::vector<std::uint32_t>& found = found_ranks(verdict_);
    for (auto& [number, rank] : ranks) {
      if (map_.ranks.size() == kMaxMapRanks) break;
      rank.rank = number;
      rank.found = holds_rank(found, number);
      map_.ranks.push_back(std::move(rank));
    }
    map_.omitted = all - map_.ranks.size();
  }

  std::vector<StateSpan> spans_of(const Digest& one) const {
    std::vector<StateSpan> spans;
    if (one.last_step) {
      const std::uint32_t last = *one.last_step;
      const std::uint32_t first =
          one.steps == 0 || one.steps > last ? 0 : last + 1 - static_cast<std::uint32_t>(one.steps);
      const std::optional<std::uint32_t> clean = one.clean_through;
      if (clean && *clean >= first) spans.push_back({RankState::kClean, first, std::min(*clean, last)});
      const std::uint32_t after = clean ? std::max(first, std::min(*clean, last) + 1) : first;
      if (!clean || *clean < last) spans.push_back({RankState::kAfter, after, last});
    }
    for (const DigestOrigin& origin : one.origins) {
      const std::uint32_t from = std::min(origin.first_step, origin.place.step);
      const RankState state = origin.severity == Severity::kFault ? RankState::kOrigin : RankState::kWarning;
      spans.push_back({state, from, std::max({from, origin.last_step, origin.place.step})});
    }
    if (one.arrival) spans.push_back({RankState::kArrived, one.arrival->step, one.arrival->step});
    if (verdict_.parting) {
      const Parting& parting = *verdict_.parting;
      if (holds_rank(parting.minority.empty() ? parting.seen : parting.minority, one.rank))
        spans.push_back(
            {RankState::kParted, parting.step, std::max(parting.step, one.last_step.value_or(parting.step))});
    }
    return spans;
  }

  void lay_out_columns() {
    std::optional<std::uint32_t> first, last;
    for (const MapRank& rank : map_.ranks) {
      for (const StateSpan& span : rank.spans) {
        first = std::min(first.value_or(span.from), span.from);
        last = std::max(last.value_or(span.to), span.to);
      }
    }
    if (!first) return;
    const std::uint64_t steps = std::uint64_t{*last} - *first + 1;
    const std::uint64_t per_column = (steps + kMaxMapColumns - 1) / kMaxMapColumns;
    map_.first_step = *first;
    map_.last_step = *last;
    map_.steps_per_column = static_cast<std::uint32_t>(per_column);
    map_.columns = static_cast<std::size_t>((steps + per_column - 1) / per_column);
  }

  // Those of most ranks, as the shape has them: a name that few ranks use groups nobody.
  void add_coordinates() {
    std::map<std::string, std::size_t> counts;
    for (const Digest& one : verdict_.digests.ranks) {
      for (const auto& [name, place] : one.coordinates) ++counts[name];
    }
    std::size_t added = 0;
    for (const auto& [name, count] : counts) {
      if (2 * count <= verdict_.digests.ranks.size() || added == kMaxCoordinates) continue;
      ++added;
      add_grouping(name, [&](const Digest& one) -> std::optional<std::string> {
        const auto at = one.coordinates.find(name);
        return at == one.coordinates.end() ? std::nullopt : std::optional(std::to_string(at->second));
      });
    }
  }

  template <typename F>
  void add_grouping(const std::string& dimension, F&& value_of) {
    RankGrouping grouping{dimension, {}, {}};
    std::vector<std::optional<std::string>> values;
    std::set<std::string> all;
    for (const MapRank& rank : map_.ranks) {
      values.push_back(rank.digest == nullptr ? std::nullopt : value_of(*rank.digest));
      if (values.back()) all.insert(*values.back());
    }
    if (all.empty()) return;
    grouping.values.assign(all.begin(), all.end());
    std::stable_sort(grouping.values.begin(), grouping.values.end(), natural_less);
    std::map<std::string_view, std::uint32_t> indices;
    for (std::uint32_t i = 0; i < grouping.values.size(); ++i) indices.emplace(grouping.values[i], i);
    const auto unknown = static_cast<std::uint32_t>(grouping.values.size());
    for (const auto& value : values) grouping.value.push_back(value ? indices.at(*value) : unknown);
    map_.groupings.push_back(std::move(grouping));
  }

  const FleetVerdict& verdict_;
  RankMap map_;
};

// How many ranks each band holds: of one value, or of several whole ones.
std::vector<std::size_t> band_sizes(const std::vector<std::size_t>& values, std::size_t most) {
  std::vector<std::size_t> sizes;
  if (values.size() > most) {
    const std::size_t together = (values.size() + most - 1) / most;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % together == 0) sizes.push_back(0);
      sizes.back() += values[i];
    }
    return sizes;
  }
  const auto bands_of = [&](std::size_t size) {
    std::size_t bands = 0;
    for (const std::size_t ranks : values) bands += (ranks + size - 1) / size;
    return bands;
  };
  std::size_t low = 1, high = std::max<std::size_t>(1, *std::max_element(values.begin(), values.end()));
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (bands_of(middle) <= most) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (const std::size_t ranks : values) {
    const std::size_t bands = (ranks + low - 1) / low;
    for (std::size_t i = 0; i < bands; ++i) sizes.push_back(ranks / bands + (i < ranks % bands ? 1 : 0));
  }
  return sizes;
}

void paint(const RankMap& map, const MapRank& rank, RankState* row) {
  if (rank.digest == nullptr) {
    for (std::size_t column = 0; column < map.columns; ++column) row[column] = std::max(row[column], rank.absent);
    return;
  }
  for (std::size_t column = 0; column < map.columns; ++column) row[column] = std::max(row[column], RankState::kNothing);
  for (const StateSpan& span : rank.spans) {
    for (std::size_t column = map.column_of(span.from); column <= map.column_of(span.to); ++column)
      row[column] = std::max(row[column], span.state);
  }
}

}  // namespace

const RankStateWords& rank_state_words(RankState state) { return kStateWords.at(static_cast<std::size_t>(state)); }

RankMap make_rank_map(const FleetVerdict& verdict) { return MapMaker(verdict).run(); }

BandedMap aggregate_ranks(const RankMap& map, std::size_t grouping, std::size_t most) {
  BandedMap banded;
  if (map.ranks.empty()) return banded;
  const RankGrouping& by = map.groupings.at(grouping);
  banded.order.resize(map.ranks.size());
  std::iota(banded.order.begin(), banded.order.end(), 0U);
  std::stable_sort(banded.order.begin(), banded.order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return by.value[a] < by.value[b]; });
  std::vector<std::size_t> values(by.values.size() + 1, 0);
  for (const std::uint32_t value : by.value) ++values[value];
  std::erase(values, std::size_t{0});
  auto next = banded.order.begin();
  for (const std::size_t ranks : band_sizes(values, most)) {
    RankBand band{static_cast<std::uint32_t>(ranks), 0, 0};
    const std::size_t row = banded.cells.size();
    banded.cells.resize(row + map.columns, RankState::kMissing);
    for (std::size_t i = 0; i < ranks; ++i, ++next) {
      const MapRank& rank = map.ranks[*next];
      band.found += rank.found ? 1 : 0;
      band.absent += rank.digest == nullptr ? 1 : 0;
      paint(map, rank, banded.cells.data() + row);
    }
    banded.bands.push_back(band);
  }
  return banded;
}

}  // namespace nanhunt::fleet
