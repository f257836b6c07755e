// SPDX-License-Identifier: Apache-2.0
// Ops that gave a number that is not finite, one flat row each: what queries over many ranks begin with.
#pragma once

#include <cstddef>

#include "src/trace/cells.h"

namespace nanhunt::trace {

bool is_bad_op(const RecordBatch& batch, std::size_t row, const TraceNames& names);
// A row of batch.ops.
void show_bad_op(const RecordBatch& batch, std::size_t row, const TraceNames& names, Cells& cells);

}  // namespace nanhunt::trace
