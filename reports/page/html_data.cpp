// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "reports/json/json_layers.h"
#include "reports/json/json_values.h"
#include "reports/views/layer_planes.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kTimelinePoints = 4096;
constexpr std::size_t kMapCells = std::size_t{1} << 19U;
constexpr double kBytesPerCell = 3.0;  // two planes and a bit, in base64

// A column of numbers as little-endian bytes in base64.
class Column {
 public:
  void add(std::uint32_t value) {
    for (unsigned shift = 0; shift < 32; shift += 8) bytes_.push_back(static_cast<std::uint8_t>(value >> shift));
  }
  // float32; what is not finite becomes NaN, and what float32 cannot hold stays at its edge.
  void add(double value) {
    constexpr double kMost = std::numeric_limits<float>::max();
    const bool known = std::isfinite(value);
    const float kept = known ? static_cast<float>(std::clamp(value, -kMost, kMost)) : 0.0F;
    add(known ? std::bit_cast<std::uint32_t>(kept) : 0x7fc00000U);
  }
  void add_byte(std::uint8_t value) { bytes_.push_back(value); }
  std::string text() const { return base64(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

// Bits 0-1: the loss is 0 finite, 1 NaN, 2 +Inf, 3 -Inf. Bit 2: skipped. Bit 3: operations with a bad output.
std::uint8_t step_flags(const TimelineStep& step) {
  unsigned flags = std::isnan(step.loss) ? 1 : std::isfinite(step.loss) ? 0 : step.loss > 0 ? 2 : 3;
  if (step.skipped) flags |= 4;
  if (step.bad_ops != 0) flags |= 8;
  return static_cast<std::uint8_t>(flags);
}

json timeline_data(const Analysis& analysis) {
  Column step, loss, gradient_norm, weight_norm, flags;
  bool has_gradient_norm = false, has_weight_norm = false;
  const std::size_t count = std::min(analysis.timeline.size(), kTimelinePoints);
  for (std::size_t i = 0; i < count; ++i) {
    const TimelineStep& t = analysis.timeline[i];
    step.add(t.step);
    loss.add(t.loss);
    gradient_norm.add(t.gradient_norm);
    weight_norm.add(t.weight_norm);
    flags.add_byte(step_flags(t));
    has_gradient_norm = has_gradient_norm || (std::isfinite(t.gradient_norm) && t.gradient_norm != 0);
    has_weight_norm = has_weight_norm || (std::isfinite(t.weight_norm) && t.weight_norm != 0);
  }
  return {{"count", count},
          {"step", step.text()},
          {"loss", loss.text()},
          {"flags", flags.text()},
          {"gradient_norm", has_gradient_norm ? json(gradient_norm.text()) : json()},
          {"weight_norm", has_weight_norm ? json(weight_norm.text()) : json()}};
}

json scale_data(const ScalerSection& scaler) {
  Column step, scale, skipped;
  const std::size_t count = std::min(scaler.points.size(), kTimelinePoints);
  for (std::size_t i = 0; i < count; ++i) {
    step.add(scaler.points[i].step);
    scale.add(scaler.points[i].scale);
    skipped.add_byte(scaler.points[i].skipped ? 1 : 0);
  }
  return {{"count", count}, {"step", step.text()}, {"scale", scale.text()}, {"skipped", skipped.text()}};
}

json chain_data(const ChainView& chain, const Finding& origin) {
  json nodes = json::array(), edges = json::array();
  for (const ChainStep& step : chain.steps) {
    nodes.push_back({{"role", step.role},
                     {"badge", step.badge},
                     {"title", step.title},
                     {"place", step.place},
                     {"amount", step.amount}});
  }
  const auto shown = static_cast<int>(chain.steps.size());
  const auto in_range = [&](int index) { return index >= 0 && index < shown; };
  for (const ChainEdge& edge : origin.chain.edges) {
    if (edges.size() == kMaxChainNodes * kMaxChainNodes) break;
    if (in_range(edge.from) && in_range(edge.to)) edges.push_back({edge.from, edge.to});
  }
  return {{"nodes", std::move(nodes)}, {"edges", std::move(edges)}, {"omitted", json_count(chain.omitted)}};
}

}  // namespace

std::string escape_for_script(std::string raw) {
  std::string out;
  out.reserve(raw.size());
  for (const char c : raw) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string make_page_data(const Analysis& analysis, const ReportModel& model, std::size_t layer_rows,
                           std::size_t max_bytes) {
  json data = {{"timeline", timeline_data(analysis)}, {"scaler", nullptr}, {"chain", nullptr}, {"map", nullptr}};
  if (analysis.scaler) data["scaler"] = scale_data(*analysis.scaler);
  const Finding* origin = find_origin(analysis);
  if (origin != nullptr && model.origin) data["chain"] = chain_data(model.origin->chain, *origin);
  // One line, ASCII: U+2028 and its like are escaped by dump_json.
  const std::size_t so_far = escape_for_script(dump_json(data, -1)).size();
  const double left = max_bytes > so_far ? static_cast<double>(max_bytes - so_far) / kBytesPerCell : 0;
  const std::size_t cells = std::min(kMapCells, static_cast<std::size_t>(left));
  if (cells < layer_rows) return escape_for_script(dump_json(data, -1));
  const LayerPlanes planes = make_layer_planes(analysis, layer_rows, cells);
  if (!tells(planes)) return escape_for_script(dump_json(data, -1));
  data["map"] = planes_to_json(planes);
  // Which row of the table names each row of the map.
  json order = json::array();
  for (std::size_t i = 0; i < planes.rows; ++i) order.push_back(-1);
  for (std::size_t row = 0; row < layer_rows && row < model.layers.size(); ++row) {
    if (model.layers[row].at < planes.rows) order[model.layers[row].at] = row;
  }
  data["map"]["order"] = std::move(order);
  return escape_for_script(dump_json(data, -1));
}

}  // namespace nanhunt::reports
