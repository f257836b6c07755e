// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "src/fleet/fleet_text.h"

namespace nanhunt::fleet {
namespace {

using nlohmann::json;
using reports::json_count;
using reports::json_text;

constexpr std::size_t kMostRanks = 1024;

// Of many, the first ones; how many there are stands beside.
json ranks_to_json(const std::vector<std::uint32_t>& ranks) {
  json list = json::array();
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostRanks); ++i) list.push_back(ranks[i]);
  return {{"count", ranks.size()}, {"ranks", std::move(list)}};
}

json number_or_null(const std::optional<std::uint32_t>& number) { return number ? json(*number) : json(); }

json places_to_json(const std::vector<Place>& places) {
  json list = json::array();
  for (const Place& place : places) list.push_back({{"dimension", json_text(place.dimension)}, {"value", json_text(place.value)}});
  return list;
}

json shape_to_json(const Shape& shape) {
  json also = json::array();
  for (const std::vector<Place>& places : shape.also) also.push_back(places_to_json(places));
  return {{"kind", shape_kind_name(shape.kind)},
          {"places", places_to_json(shape.places)},
          {"but", ranks_to_json(shape.but)},
          {"besides", ranks_to_json(shape.besides)},
          {"also", std::move(also)}};
}

json first_to_json(const FleetVerdict& verdict) {
  if (!verdict.first) return nullptr;
  const DigestOrigin& one = *verdict.first;
  const auto name = [](const std::optional<std::string>& text) { return text ? json_text(*text) : json(); };
  return {{"rank", *verdict.first_rank},
          {"step", one.place.step},
          {"micro_batch", one.place.micro_batch},
          {"phase", phase_name(one.place.phase)},
          {"op", name(one.place.op)},
          {"module", name(one.place.module)},
          {"class", finding_class_name(one.cls)},
          {"confidence", confidence_name(one.confidence)},
          {"call_site", reports::json_text_or_null(one.call_site)},
          {"cause", reports::json_text_or_null(one.cause)},
          {"title", json_text(one.title)}};
}

json came_by_to_json(const std::optional<DigestArrival>& one) {
  if (!one) return nullptr;
  return {{"step", one->step},         {"micro_batch", one->micro_batch},    {"through", json_text(one->through)},
          {"group", json_text(one->group)}, {"call", json_count(one->call)}, {"members", json_count(one->members)}};
}

json parting_to_json(const std::optional<Parting>& one) {
  if (!one) return nullptr;
  return {{"lowest", one->replicas.lowest},
          {"count", json_count(one->replicas.count)},
          {"step", one->step},
          {"equal_until", number_or_null(one->equal_until)},
          {"minority", ranks_to_json(one->minority)},
          {"seen", one->seen.size()}};
}

}  // namespace

std::string render_fleet_json(const FleetVerdict& verdict) {
  const Digests& d = verdict.digests;
  json notes = json::array(), unread = json::array();
  for (const std::string& note : verdict.notes) notes.push_back(json_text(note));
  for (std::size_t i = 0; i < std::min(d.unread.size(), kMostRanks); ++i)
    unread.push_back({{"rank", number_or_null(d.unread[i].rank)}, {"path", json_text(d.unread[i].path)}, {"why", json_text(d.unread[i].why)}});
  const json out = {{"schema", "nanhunt.fleet"},
                    {"schema_version", 1},
                    {"status", verdict_status_name(verdict.status)},
                    {"headline", json_text(verdict.headline)},
                    {"world_size", d.world_size},
                    {"read", d.ranks.size()},
                    {"missing", {{"count", json_count(d.missing_count())}, {"ranks", d.missing(kMostRanks)}}},
                    {"older", ranks_to_json(d.older)},
                    {"unread", {{"count", d.unread.size()}, {"digests", std::move(unread)}}},
                    {"unended", ranks_to_json(verdict.unended)},
                    {"clean_through", number_or_null(verdict.clean_through)},
                    {"first", first_to_json(verdict)},
                    {"ranks", ranks_to_json(verdict.ranks)},
                    {"first_ranks", ranks_to_json(verdict.first_ranks)},
                    {"shape", shape_to_json(verdict.shape)},
                    {"origin_is_missing", verdict.origin_is_missing},
                    {"came_by", came_by_to_json(verdict.came_by)},
                    {"reached", ranks_to_json(verdict.reached)},
                    {"parting", parting_to_json(verdict.parting)},
                    {"partings", json_count(verdict.partings)},
                    {"to_open", verdict.to_open},
                    {"notes", std::move(notes)}};
  return reports::dump_json(out) + "\n";
}

}  // namespace nanhunt::fleet
