// SPDX-License-Identifier: Apache-2.0
// What the map of the page is drawn from, as columns of numbers: reports/html/src/fleet_data.ts reads it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "reports/page/html_data.h"
#include "reports/views/layer_planes.h"
#include "reports/views/numbers.h"
#include "src/analyze/wording/text.h"
#include "src/fleet/fleet_page.h"

namespace nanhunt::fleet {
namespace {

using nlohmann::json;

constexpr std::size_t kValueLimit = 80;  // bytes of a host or a card
constexpr std::size_t kTitleLimit = 200;

// As many bytes a number as the largest needs: 1, 2 or 4, little-endian.
json number_column(const std::vector<std::uint32_t>& numbers) {
  const std::uint32_t most = numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
  const unsigned width = most < 256 ? 1 : most < 65536 ? 2 : 4;
  std::vector<std::uint8_t> bytes;
  for (const std::uint32_t number : numbers) {
    for (unsigned i = 0; i < width; ++i) bytes.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
  }
  return {{"width", width}, {"bytes", reports::base64(bytes)}};
}

json clipped(const std::string& text, std::size_t limit = kValueLimit) {
  return reports::json_text(reports::clip(text, limit));
}
json or_null(const std::optional<std::uint32_t>& number) { return number ? json(*number) : json(); }

// Rows of states as runs, 7 bits a byte: 16 times the number of columns, plus the state.
std::string runs_of(const BandedMap& banded, std::size_t columns) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t row = 0; row < banded.bands.size(); ++row) {
    for (std::size_t from = 0; from < columns;) {
      const RankState state = banded.cells[row * columns + from];
      std::size_t to = from + 1;
      while (to < columns && banded.cells[row * columns + to] == state) ++to;
      std::size_t code = (to - from) * 16 + static_cast<std::size_t>(state);
      for (; code >= 128; code >>= 7U) bytes.push_back(static_cast<std::uint8_t>(code | 128U));
      bytes.push_back(static_cast<std::uint8_t>(code));
      from = to;
    }
  }
  return reports::base64(bytes);
}

json map_to_json(const RankMap& map, std::size_t grouping) {
  const BandedMap banded = aggregate_ranks(map, grouping);
  std::vector<std::uint32_t> sizes;
  for (const RankBand& band : banded.bands) sizes.push_back(band.ranks);
  return {{"bands", number_column(sizes)}, {"runs", runs_of(banded, map.columns)}};
}

// What a rank's panel says beside where it stands. Most ranks of a run have the same facts.
json facts_to_json(const MapRank& rank) {
  const Digest& one = *rank.digest;
  json began = json::array();
  for (const DigestOrigin& origin : one.origins) {
    const std::string micro =
        origin.place.micro_batch == 0 ? "" : fmt::format(", micro-batch {}", origin.place.micro_batch);
    const std::string until = origin.last_step > origin.place.step ? fmt::format(" to {}", origin.last_step) : "";
    std::string text =
        fmt::format("step {}{}{}: {}", origin.place.step, until, micro, reports::clip(origin.title, kTitleLimit));
    if (!origin.call_site.empty()) text += " (" + reports::clip(origin.call_site, kTitleLimit) + ")";
    began.push_back(reports::json_text(text));
  }
  for (const StateSpan& span : rank.spans) {
    if (span.state == RankState::kParted)
      began.push_back(fmt::format("step {}: its parameters are seen to differ from those of its replicas", span.from));
  }
  json came;
  if (one.arrival) {
    came = reports::json_text(fmt::format(
        "step {}: by {} {}{}", one.arrival->step, reports::clip(one.arrival->through, kValueLimit), one.arrival->call,
        one.arrival->group.empty() ? "" : " of group " + reports::clip(one.arrival->group, kValueLimit)));
  }
  return {{"status", verdict_status_name(one.status)},
          {"attempt", one.attempt},
          {"ended", one.ended},
          {"last_step", or_null(one.last_step)},
          {"clean", or_null(one.clean_through)},
          {"began", std::move(began)},
          {"came", std::move(came)},
          {"card", clipped(one.accelerator_name)}};
}

std::size_t size_of(const json& value) { return reports::escape_for_script(reports::dump_json(value, -1)).size(); }

class DataMaker {
 public:
  DataMaker(const RankMap& map, const FleetPageOptions& options, std::size_t max_bytes)
      : map_(map), options_(options), left_(max_bytes) {}

  std::string run() {
    add_head();
    add_groupings();
    add_facts();
    add_cards();
    return reports::escape_for_script(reports::dump_json({{"fleet", std::move(out_)}}, -1));
  }

 private:
  // Takes room for `value`; false: there is too little.
  bool takes(const json& value) {
    const std::size_t bytes = size_of(value) + 64;
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  void add_head() {
    json states = json::array();
    for (std::size_t i = 0; i < kRankStates; ++i) states.push_back(rank_state_words(static_cast<RankState>(i)).name);
    std::vector<std::uint32_t> numbers, presence, found;
    for (const MapRank& one : map_.ranks) {
      numbers.push_back(one.rank);
      presence.push_back(one.digest != nullptr ? kRankStates : static_cast<std::uint32_t>(one.absent));
      found.push_back(one.found ? 1 : 0);
    }
    out_ = {{"states", std::move(states)},
            {"run", reports::json_text(reports::clip(options_.run, 1000))},
            {"first_step", map_.first_step},
            {"last_step", map_.last_step},
            {"steps_per_column", map_.steps_per_column},
            {"columns", map_.columns},
            {"omitted", reports::json_count(map_.omitted)},
            {"linked", options_.linked}};
    out_["ranks"] = number_column(numbers);
    out_["presence"] = number_column(presence);
    out_["found"] = number_column(found);
    takes(out_);
  }

  void add_groupings() {
    json groupings = json::array(), left_out = json::array();
    for (std::size_t i = 0; i < map_.groupings.size(); ++i) {
      const RankGrouping& by = map_.groupings[i];
      json one = {{"dimension", clipped(by.dimension)}, {"map", map_to_json(map_, i)}};
      if (i > 0) {
        json values = json::array();
        for (const std::string& value : by.values) values.push_back(clipped(value));
        one["values"] = std::move(values);
        one["value"] = number_column(by.value);
      }
      if (takes(one)) {
        groupings.push_back(std::move(one));
      } else {
        left_out.push_back(clipped(by.dimension));
      }
    }
    out_["group_by"] = clipped(map_.groupings.at(map_.first_grouping).dimension);
    out_["groupings"] = std::move(groupings);
    out_["groupings_left_out"] = std::move(left_out);
  }

  // Ranks that the verdict names first, so that they have theirs where there is too little room for all. 0: none.
  void add_facts() {
    json all = json::array();
    std::map<std::string, std::uint32_t> known;
    std::vector<std::uint32_t> facts(map_.ranks.size(), 0);
    const std::size_t column = 6 * map_.ranks.size() + 128;  // that says which ones a rank has
    left_ -= std::min(left_, column);
    for (const bool found : {true, false}) {
      for (std::size_t i = 0; i < map_.ranks.size(); ++i) {
        const MapRank& one = map_.ranks[i];
        if (one.digest == nullptr || one.found != found) continue;
        json value = facts_to_json(one);
        const std::string text = reports::dump_json(value, -1);
        auto at = known.find(text);
        if (at == known.end()) {
          if (!takes(value)) continue;
          all.push_back(std::move(value));
          at = known.emplace(text, static_cast<std::uint32_t>(all.size())).first;
        }
        facts[i] = at->second;
      }
    }
    out_["facts"] = std::move(all);
    out_["facts_of"] = number_column(facts);
  }

  // By the index of the rank: each has one of its own. Found ranks first.
  void add_cards() {
    json cards = json::array();
    for (std::size_t i = 0; i < map_.ranks.size(); ++i) cards.push_back("");
    takes(cards);
    for (const bool found : {true, false}) {
      for (std::size_t i = 0; i < map_.ranks.size(); ++i) {
        const MapRank& one = map_.ranks[i];
        if (one.digest == nullptr || one.found != found || one.digest->accelerator_id.empty()) continue;
        json value = clipped(one.digest->accelerator_id);
        const std::size_t bytes = size_of(value);
        if (bytes > left_) break;
        left_ -= bytes;
        cards[i] = std::move(value);
      }
    }
    out_["cards"] = std::move(cards);
  }

  const RankMap& map_;
  const FleetPageOptions& options_;
  std::size_t left_;
  json out_;
};

}  // namespace

std::string make_fleet_data(const RankMap& map, const FleetPageOptions& options, std::size_t max_bytes) {
  return DataMaker(map, options, max_bytes).run();
}

}  // namespace nanhunt::fleet
