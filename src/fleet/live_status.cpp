// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/live_status.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "reports/json/json_values.h"

namespace nanhunt::fleet {
namespace {

using nlohmann::json;
using reports::json_count;
using reports::json_text;

json step_or_null(const std::optional<std::uint32_t>& step) { return step ? json(*step) : json(); }
json known_or_null(const std::optional<double>& number) { return number ? reports::json_number(*number) : json(); }

json live_numbers_to_json(const LiveNumbers& n) {
  return {{"ranks", {{"seen", n.ranks}, {"training", n.training}, {"ended", n.ended}, {"quiet", n.quiet}}},
          {"step", {{"lowest", step_or_null(n.lowest_step)}, {"highest", step_or_null(n.highest_step)}}},
          {"clean_through", step_or_null(n.clean_through)},
          {"bad_steps", json_count(n.bad_steps)},
          {"skipped_steps", json_count(n.skipped_steps)},
          {"scale", known_or_null(n.scale)}};
}

json live_fault_to_json(const LiveFault& one) {
  return {{"rank", one.rank},
          {"ranks", one.ranks},
          {"step", one.step},
          {"class", json_text(one.cls)},
          {"op", reports::json_text_or_null(one.op)},
          {"module", reports::json_text_or_null(one.module)},
          {"call_site", reports::json_text_or_null(one.call_site)},
          {"title", json_text(one.title)}};
}

template <typename T, typename Choose>
void take(std::optional<T>& into, const std::optional<T>& other, Choose&& choose) {
  if (other) into = into ? choose(*into, *other) : *other;
}

}  // namespace

std::string_view live_state_name(LiveState state) {
  switch (state) {
    case LiveState::kNotBegun:
      return "not_begun";
    case LiveState::kTraining:
      return "training";
    case LiveState::kEnded:
      return "ended";
    case LiveState::kQuiet:
      return "quiet";
  }
  return "";
}

void LiveNumbers::add(const LiveNumbers& rank) {
  const auto least = [](auto a, auto b) { return std::min(a, b); };
  const auto most = [](auto a, auto b) { return std::max(a, b); };
  ranks += rank.ranks;
  training += rank.training;
  ended += rank.ended;
  quiet += rank.quiet;
  take(lowest_step, rank.lowest_step, least);
  take(highest_step, rank.highest_step, most);
  any_unclean = any_unclean || rank.any_unclean;
  take(clean_through, rank.clean_through, least);
  if (any_unclean) clean_through.reset();
  bad_steps = std::max(bad_steps, rank.bad_steps);
  skipped_steps = std::max(skipped_steps, rank.skipped_steps);
  take(scale, rank.scale, least);
}

std::vector<LiveGroup> group_ranks(const std::vector<LiveRank>& ranks, std::size_t most) {
  if (ranks.size() < 2) return {};
  struct Group {
    LiveNumbers numbers;
    std::vector<std::size_t> ranks;
  };
  std::map<std::string, std::map<std::string, Group>> dimensions;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (const Place& place : ranks[i].places) {
      Group& group = dimensions[place.dimension][place.value];
      group.numbers.add(ranks[i].numbers);
      group.ranks.push_back(i);
    }
  }
  std::vector<std::pair<std::size_t, std::string>> order;  // places, dimension
  for (const auto& [name, places] : dimensions) order.emplace_back(places.size(), name);
  std::sort(order.begin(), order.end());
  std::vector<LiveGroup> groups;
  std::vector<bool> rest(ranks.size(), false);
  for (const auto& [count, name] : order) {
    for (auto& [value, group] : dimensions[name]) {
      if (groups.size() < most) {
        groups.push_back({{name, value}, group.numbers});
      } else {
        for (const std::size_t i : group.ranks) rest[i] = true;
      }
    }
  }
  LiveGroup other{{"", "other"}, {}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (rest[i]) other.numbers.add(ranks[i].numbers);
  }
  if (other.numbers.ranks > 0) groups.push_back(std::move(other));
  return groups;
}

std::string render_live_json(const LiveStatus& status, std::string_view run) {
  json groups = json::array(), faults = json::array();
  for (const LiveGroup& group : status.groups) {
    json row = live_numbers_to_json(group.numbers);
    row["dimension"] = reports::json_text_or_null(group.place.dimension);
    row["value"] = json_text(group.place.value);
    groups.push_back(std::move(row));
  }
  for (const LiveFault& one : status.faults) faults.push_back(live_fault_to_json(one));
  json out = live_numbers_to_json(status.numbers);
  out["schema"] = "nanhunt.watch";
  out["schema_version"] = 1;
  out["run"] = json_text(run);
  out["state"] = live_state_name(status.state);
  out["status"] = verdict_status_name(status.status);
  out["headline"] = reports::json_text_or_null(status.headline);
  out["world_size"] = json_count(status.world_size);
  out["shown_rank"] = step_or_null(status.shown_rank);
  out["loss"] = known_or_null(status.loss);
  out["lr"] = known_or_null(status.lr);
  out["gradient_norm"] = known_or_null(status.gradient_norm);
  out["seconds_per_step"] = known_or_null(status.seconds_per_step);
  out["watching"] = known_or_null(status.watching);
  out["damaged"] = json_count(status.damaged);
  out["quiet_seconds"] = static_cast<std::int64_t>(status.quiet_seconds);
  out["groups"] = std::move(groups);
  out["faults"] = std::move(faults);
  return reports::dump_json(out, -1);
}

}  // namespace nanhunt::fleet
