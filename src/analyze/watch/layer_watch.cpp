// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/layer_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nanhunt::analyze {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// NaN gives way to any number.
template <typename T>
T least(T a, T b) {
  return std::isnan(a) || b < a ? b : a;
}
template <typename T>
T largest(T a, T b) {
  return std::isnan(a) || b > a ? b : a;
}

}  // namespace

LayerWatch::Cell::Cell() : headroom(static_cast<float>(kNaN)), underflow(static_cast<float>(kNaN)) {}

void LayerWatch::Cell::merge(const Cell& other) {
  headroom = least(headroom, other.headroom);
  underflow = largest(underflow, other.underflow);
  nonfinite = static_cast<std::uint8_t>(nonfinite | other.nonfinite);
}

std::uint32_t LayerWatch::column_of(std::uint32_t step) {
  if (columns_ == 0) first_step_ = step;
  const std::uint32_t past = step > first_step_ ? step - first_step_ : 0;
  while (past / width_ >= kMaxColumns) {
    for (Layer& layer : layers_) {
      std::vector<Cell>& cells = layer.cells;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (i % 2 == 1) {
          cells[i / 2].merge(cells[i]);
        } else {
          cells[i / 2] = cells[i];
        }
      }
      cells.resize((cells.size() + 1) / 2);
    }
    columns_ = (columns_ + 1) / 2;
    width_ *= 2;
  }
  columns_ = std::max(columns_, past / width_ + 1);
  return past / width_;
}

void LayerWatch::on_op(const OpInView& op) {
  const Phase phase = op.record->phase;
  const bool gradients = phase == Phase::kBackward;
  if ((!gradients && phase != Phase::kForward && phase != Phase::kLoss) || op.record->module == 0) return;
  std::int32_t* slot = index_.insert(op.record->module);
  if (slot == nullptr) return;
  if (*slot == 0) {
    if (layers_.size() < kMaxLayers) {
      layers_.emplace_back();
      LayerSummary& made = layers_.back().summary;
      made.dtype = DType::kF64;
      layers_.back().module = op.record->module;
      made.headroom_forward = made.headroom_gradient = made.underflow_forward = made.underflow_gradient = kNaN;
      *slot = static_cast<std::int32_t>(layers_.size());
    } else {
      ++omitted_;
      *slot = -1;
    }
  }
  const std::uint32_t column = column_of(op.record->step);
  if (*slot < 0) return;
  Layer& layer = layers_[static_cast<std::size_t>(*slot - 1)];
  LayerSummary& s = layer.summary;
  ++s.ops;
  Cell now;
  bool bad = false;
  for (const Value* value : op.out) {
    if (value == nullptr || !value->has_stats || !value->stats.counted()) continue;
    const LayoutRecord* layout = names_.layout(value->layout);
    if (layout == nullptr || !is_floating(layout->dtype)) continue;
    const DType dtype = layout->dtype;
    if (dtype_size(dtype) < dtype_size(s.dtype)) s.dtype = dtype;
    const ValueStats& stats = value->stats;
    // Infinities of a mask are no news.
    if (value->bad != 0 && value->deliberate == Deliberate::kNo) {
      bad = true;
      s.nan += stats.nan;
      s.inf += stats.inf();
    }
    if (stats.numel == 0) continue;
    double& amax = gradients ? s.amax_gradient : s.amax_forward;
    amax = std::max(amax, stats.amax);
    if (gradients && value->bad == 0) layer.gradient_now = std::max(layer.gradient_now, stats.amax);
    if (stats.amax > 0) {
      const double room = format_limits(dtype).max_finite / stats.amax, headroom = std::log2(room);
      if (gradients && dtype_size(dtype) <= 2 && dtype != DType::kBF16) layer.room_now = std::min(layer.room_now, room);
      Trend& trend = gradients ? layer.gradient : layer.forward;
      if (value->bad == 0) trend.now = std::max(trend.now, static_cast<float>(-headroom));
      double& smallest = gradients ? s.headroom_gradient : s.headroom_forward;
      smallest = least(smallest, headroom);
      now.headroom = least(now.headroom, static_cast<float>(headroom));
    }
    const double lost = static_cast<double>(stats.subnormal + std::max<std::int64_t>(0, value->flushed));
    const double share = std::min(1.0, lost / static_cast<double>(stats.numel));
    double& worst = gradients ? s.underflow_gradient : s.underflow_forward;
    worst = largest(worst, share);
    now.underflow = largest(now.underflow, static_cast<float>(share));
  }
  if (bad) {
    if (s.bad_ops++ == 0) s.first_bad_step = op.record->step;
    LayerSummary::FirstBad& first = gradients ? s.bad_gradient : s.bad_forward;
    if (first.seq == kNoSeq) first = {op.record->step, op.record->seq};
    now.nonfinite = 1;
  }
  if (layer.cells.size() <= column) layer.cells.resize(column + 1);
  layer.cells[column].merge(now);
  s.module = names_.text(op.record->module);
}

void LayerWatch::Trend::close(std::uint32_t step, bool kept) {
  if (kept && std::isfinite(now)) {
    if (ring.size() < kTrendSteps) {
      ring.emplace_back(step, now);
    } else {
      ring[next] = {step, now};
    }
    next = (next + 1) % kTrendSteps;
  }
  now = -std::numeric_limits<float>::infinity();
}

// Least squares of the binades left over the steps.
std::optional<std::pair<double, double>> LayerWatch::Trend::fit() const {
  const auto n = static_cast<double>(ring.size());
  if (ring.size() < kFewestTrendSteps) return std::nullopt;
  double mean_x = 0, mean_y = 0;
  std::pair<std::uint32_t, float> last = ring.front();
  for (const auto& point : ring) {
    mean_x += point.first / n;
    mean_y += static_cast<double>(point.second) / n;
    last = std::max(last, point);
  }
  double xx = 0, xy = 0, yy = 0;
  for (const auto& [x, y] : ring) {
    const double dx = x - mean_x, dy = static_cast<double>(y) - mean_y;
    xx += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
  }
  if (!(xx > 0) || !(xy > 0) || !(yy > 0)) return std::nullopt;
  const double slope = xy / xx, explained = xy * xy / (xx * yy);
  const double left = -(mean_y + slope * (last.first - mean_x));  // binades, on the line
  const double steps = left / slope;
  const double slope_error = std::sqrt(std::max(0.0, yy - slope * xy) / (n - 2) / xx);
  const double error = 2 * slope_error / slope * std::fabs(steps);
  if (explained < kTrendFit || !(steps > 0) || steps > kTrendHorizon || error > kTrendError * steps)
    return std::nullopt;
  return std::pair(steps, error);
}

void LayerWatch::on_step_end(std::uint32_t step, double scale, bool held_back) {
  const bool usable = !held_back && std::isfinite(scale) && scale > 0;
  for (Layer& layer : layers_) {
    if (usable) {
      layer.summary.amax_unscaled = std::max(layer.summary.amax_unscaled, layer.gradient_now / scale);
      layer.scale_cap = std::min(layer.scale_cap, layer.room_now * scale);
    }
    layer.gradient_now = 0;
    layer.room_now = std::numeric_limits<double>::infinity();
    layer.forward.close(step, true);
    layer.gradient.close(step, usable && scale == 1);  // with a scaler it is the scale that grows
  }
}

std::optional<LayerWatch::Cap> LayerWatch::scale_cap() const {
  const Layer* first = nullptr;
  for (const Layer& layer : layers_) {
    if (std::isfinite(layer.scale_cap) && (first == nullptr || layer.scale_cap < first->scale_cap)) first = &layer;
  }
  return first == nullptr ? std::nullopt : std::optional(Cap{first->scale_cap, first->module});
}

void LayerWatch::fill(Analysis& analysis) const {
  LayerMap& map = analysis.layer_map;
  map.first_step = first_step_;
  map.steps_per_column = width_;
  map.columns = columns_;
  analysis.layers_omitted = omitted_;
  for (const Layer& layer : layers_) {
    analysis.layers.push_back(layer.summary);
    for (const Trend* trend : {&layer.forward, &layer.gradient}) {
      const auto fit = trend->fit();
      LayerSummary& told = analysis.layers.back();
      if (!fit || told.steps_to_overflow <= fit->first) continue;  // NaN is not
      told.steps_to_overflow = fit->first;
      told.steps_to_overflow_error = fit->second;
    }
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Cell cell = column < layer.cells.size() ? layer.cells[column] : Cell();
      map.headroom.push_back(cell.headroom);
      map.underflow.push_back(cell.underflow);
      map.nonfinite.push_back(cell.nonfinite);
    }
  }
}

}  // namespace nanhunt::analyze
