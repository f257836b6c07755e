// SPDX-License-Identifier: Apache-2.0
// Cuts a batch into frames: at most one chunk of each kind, each within the writer's limits, in time order.
#pragma once

#include <array>
#include <functional>

#include "src/trace/record_kind.h"

namespace nanhunt::trace {

struct Frame {
  std::array<RowRange, kKindCount> rows;  // by type number - 1
  RowRange& of(std::uint16_t type) { return rows[type - 1u]; }
  const RowRange& of(std::uint16_t type) const { return rows[type - 1u]; }
};

// Covers every row but strings and layouts, which the writer keeps as tables. A value's row is in the frame
// of the first op or mark that names it or in an earlier one; marks, releases and the like stay between the ops they
// happened between.
void for_each_frame(const RecordBatch& batch, const std::function<void(const Frame&)>& on_frame);

// From `begin`, as many rows as one chunk takes, at least one; at most `end`.
std::size_t chunk_end(const RecordKind& kind, const RecordBatch& batch, std::size_t begin, std::size_t end);

}  // namespace nanhunt::trace
