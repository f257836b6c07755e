// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_layers.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "reports/json/json_values.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kJsonPoints = 4096;
constexpr std::size_t kJsonEvents = 1024;

std::string_view known_event(std::string_view what) {
  static constexpr std::array<std::string_view, 7> kKnown = {"skip", "backoff", "growth",
                                                            "hysteresis", "set", "refused", "gave_up"};
  for (const std::string_view known : kKnown) {
    if (what == known) return known;
  }
  return "other";
}

}  // namespace

json scaler_to_json(const ScalerSection& s) {
  json points = json::array(), events = json::array();
  for (const ScalerSection::Point& point : s.points) {
    if (points.size() == kJsonPoints) break;
    points.push_back({{"step", point.step}, {"scale", json_number(point.scale)}, {"skipped", point.skipped}});
  }
  for (const ScalerSection::Event& event : s.events) {
    if (events.size() == kJsonEvents) break;
    events.push_back({{"step", event.step},
                      {"seq", json_seq(event.seq)},
                      {"what", known_event(event.what)},
                      {"scale", json_number_or_null(event.scale)},
                      {"text", json_text_or_null(event.text)}});
  }
  const std::size_t shown = events.size();
  return {{"family", json_text(s.family)},
          {"dynamic", s.dynamic},
          {"init_scale", json_number(s.init_scale)},
          {"growth_factor", json_number(s.growth_factor)},
          {"backoff_factor", json_number(s.backoff_factor)},
          {"growth_interval", json_integer(s.growth_interval)},
          {"final_scale", json_number(s.final_scale)},
          {"recommended_init_scale", s.recommended_init_scale > 0 ? json_number(s.recommended_init_scale) : json()},
          {"capped_by", json_text_or_null(s.capped_by)},
          {"steps", json_count(s.steps)},
          {"skipped", json_count(s.skipped)},
          {"backoffs", json_count(s.backoffs)},
          {"growths", json_count(s.growths)},
          {"longest_streak", s.longest_streak},
          {"ends_in_streak", s.ends_in_streak},
          {"points", std::move(points)},
          {"events", std::move(events)},
          {"events_omitted", json_count(s.events_omitted + (s.events.size() - shown))}};
}

json layer_to_json(const LayerSummary& l) {
  const auto side = [](double amax, double headroom, double underflow) {
    return json{{"amax", json_number(amax)},
                {"headroom", json_number_or_null(headroom)},
                {"underflow", json_number_or_null(underflow)}};
  };
  // What is left in each format of numbers as large as `amax`.
  const auto headroom_in = [](double amax) {
    json out = json::object();
    for (const DType format : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
      out[std::string(dtype_name(format))] =
          amax > 0 ? json_number_or_null(std::log2(format_limits(format).max_finite / amax)) : json();
    }
    return out;
  };
  return {{"module", json_text(l.module)},
          {"dtype", dtype_name(l.dtype)},
          {"headroom_in", {{"forward", headroom_in(l.amax_forward)}, {"gradient", headroom_in(l.amax_unscaled)}}},
          {"amax_unscaled", json_number(l.amax_unscaled)},
          {"steps_to_overflow", json_number_or_null(l.steps_to_overflow)},
          {"steps_to_overflow_error", json_number_or_null(l.steps_to_overflow_error)},
          {"ops", json_count(l.ops)},
          {"bad_ops", json_count(l.bad_ops)},
          {"nan", json_integer(l.nan)},
          {"inf", json_integer(l.inf)},
          {"first_bad_step", l.bad_ops == 0 ? json() : json(l.first_bad_step)},
          {"forward", side(l.amax_forward, l.headroom_forward, l.underflow_forward)},
          {"gradient", side(l.amax_gradient, l.headroom_gradient, l.underflow_gradient)}};
}

json planes_to_json(const LayerPlanes& planes) {
  if (planes.empty()) return nullptr;
  return {{"first_step", planes.first_step},
          {"steps_per_column", planes.steps_per_column},
          {"columns", planes.columns},
          {"rows", planes.rows},
          {"headroom", base64(planes.headroom)},
          {"underflow", base64(planes.underflow)},
          {"nonfinite", base64(planes.nonfinite)}};
}

}  // namespace nanhunt::reports
