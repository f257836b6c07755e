// SPDX-License-Identifier: Apache-2.0
// A map of layers over steps as bytes, row by row: small enough to travel in a report, the same bytes on any machine.
// Whoever reads them: the "layer_map" of schema/nanhunt.report.schema.json and html/src/data.ts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

// 0: nothing seen. Else 1 + four times the headroom in binades, rounded down; 255: 63.5 binades or more.
std::uint8_t headroom_byte(float headroom);

// 0: nothing seen; 1: none. Else 2 + 12 * (e + 20) + k for a share (1/2 + k/24) * 2^e, 0 <= k < 12, rounded down;
// what is below 2^-21 counts as 2.
std::uint8_t underflow_byte(float share);

struct LayerPlanes {
  std::uint32_t first_step = 0, steps_per_column = 1, columns = 0;
  std::size_t rows = 0;
  std::vector<std::uint8_t> headroom, underflow;  // rows * columns
  std::vector<std::uint8_t> nonfinite;            // bit i % 8 of byte i / 8 is cell i
  bool empty() const { return rows == 0 || columns == 0; }
};

// The first `max_rows` layers. Neighbouring columns are merged, keeping the worst of each, until at most `max_cells`
// cells are left. Empty when the map does not fit its layers.
LayerPlanes make_layer_planes(const Analysis& analysis, std::size_t max_rows, std::size_t max_cells);

// Whether a map of them shows what the table of layers does not: steps were watched throughout, and some number came near an
// edge of its format.
bool tells(const LayerPlanes& planes);

std::string base64(const std::vector<std::uint8_t>& bytes);

}  // namespace nanhunt::reports
