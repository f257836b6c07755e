// SPDX-License-Identifier: Apache-2.0
// Numbers of each module over the run, and a map of layers by steps. Bounded: a run that is longer than the map is
// wide makes its columns twice as long.
#pragma once

#include <cstdint>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/flat_map.h"
#include "src/analyze/value_graph.h"

namespace nanhunt::analyze {

class LayerWatch {
 public:
  static constexpr std::size_t kMaxLayers = 2048;
  static constexpr std::uint32_t kMaxColumns = 512;

  explicit LayerWatch(const Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void fill(Analysis& analysis) const;

 private:
  struct Cell {
    float headroom, underflow;  // NaN: nothing seen
    std::uint8_t nonfinite = 0;
    Cell();
    void merge(const Cell& other);
  };
  struct Layer {
    LayerSummary summary;
    std::vector<Cell> cells;
  };
  std::uint32_t column_of(std::uint32_t step);

  const Names& names_;
  FlatMap<std::int32_t> index_;  // by module: index + 1, -1 for one beyond kMaxLayers
  std::vector<Layer> layers_;
  std::uint64_t omitted_ = 0;
  std::uint32_t first_step_ = 0, columns_ = 0, width_ = 1;
};

}  // namespace nanhunt::analyze
