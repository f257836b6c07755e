// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/layer_watch.h"

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
    if (stats.amax > 0) {
      const double headroom = std::log2(format_limits(dtype).max_finite / stats.amax);
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
    now.nonfinite = 1;
  }
  if (layer.cells.size() <= column) layer.cells.resize(column + 1);
  layer.cells[column].merge(now);
  s.module = names_.text(op.record->module);
}

void LayerWatch::fill(Analysis& analysis) const {
  LayerMap& map = analysis.layer_map;
  map.first_step = first_step_;
  map.steps_per_column = width_;
  map.columns = columns_;
  analysis.layers_omitted = omitted_;
  for (const Layer& layer : layers_) {
    analysis.layers.push_back(layer.summary);
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Cell cell = column < layer.cells.size() ? layer.cells[column] : Cell();
      map.headroom.push_back(cell.headroom);
      map.underflow.push_back(cell.underflow);
      map.nonfinite.push_back(cell.nonfinite);
    }
  }
}

}  // namespace nanhunt::analyze
