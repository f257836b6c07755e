// SPDX-License-Identifier: Apache-2.0
// Numbers of each module over the run, and a map of layers by steps. Bounded: a run that is longer than the map is
// wide makes its columns twice as long.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/flat_map.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds of the trend: src/analyze/rules/GUIDE.md.
inline constexpr std::size_t kTrendSteps = 32;     // looked back over
inline constexpr std::size_t kFewestTrendSteps = 16;
inline constexpr double kTrendFit = 0.9;           // share of the variance that the line explains, at least
inline constexpr double kTrendError = 0.5;         // of the steps to overflow, at most
inline constexpr double kTrendHorizon = 10000;     // steps: what lies beyond is not told

class LayerWatch {
 public:
  static constexpr std::size_t kMaxLayers = 2048;
  static constexpr std::uint32_t kMaxColumns = 512;

  explicit LayerWatch(const Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  // `scale`: what the gradients of the step were multiplied by. Those of a step that was held back say little: what
  // overflowed is not in their amax.
  void on_step_end(std::uint32_t step, double scale, bool held_back);
  void fill(Analysis& analysis) const;

  // The largest scale at which every gradient of 16 bits or less of the steps so far would have fitted its format, and
  // whose gradient is the first not to. nullopt: no such gradient was seen.
  struct Cap {
    double scale = 0;
    StringId module = 0;
  };
  std::optional<Cap> scale_cap() const;

 private:
  struct Cell {
    float headroom, underflow;  // NaN: nothing seen
    std::uint8_t nonfinite = 0;
    Cell();
    void merge(const Cell& other);
  };
  // log2 of (amax / largest number of the format), the worst of a step; the last kTrendSteps of them.
  struct Trend {
    float now = -std::numeric_limits<float>::infinity();
    std::vector<std::pair<std::uint32_t, float>> ring;
    std::size_t next = 0;
    void close(std::uint32_t step, bool kept);
    // Steps to overflow and the error of the fit; nullopt: no growth, or not even enough.
    std::optional<std::pair<double, double>> fit() const;
  };
  struct Layer {
    StringId module = 0;
    LayerSummary summary;
    std::vector<Cell> cells;
    double gradient_now = 0;  // amax of this step's gradients
    double room_now = std::numeric_limits<double>::infinity();   // factor by which those of 16 bits could grow
    double scale_cap = std::numeric_limits<double>::infinity();  // smallest room * scale
    Trend forward, gradient;
  };
  std::uint32_t column_of(std::uint32_t step);

  const Names& names_;
  FlatMap<std::int32_t> index_;  // by module: index + 1, -1 for one beyond kMaxLayers
  std::vector<Layer> layers_;
  std::uint64_t omitted_ = 0;
  std::uint32_t first_step_ = 0, columns_ = 0, width_ = 1;
};

}  // namespace nanhunt::analyze
