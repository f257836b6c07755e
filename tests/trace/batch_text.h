// SPDX-License-Identifier: Apache-2.0
// A batch as text, one row a line, doubles as their bits: for exact comparison (NaN payloads, -0) and for
// the readable twins of golden traces.
#pragma once

#include <string>

#include "nanhunt/trace.h"

namespace nanhunt::trace_testing {

// Op ranges are written as the arguments they name, so where a batch keeps them makes no difference.
std::string batch_text(const RecordBatch& batch);
std::string info_text(const RunInfo& info);

// Every row of `from` behind those of `to`, as if they had come in one batch.
void append_batch(const RecordBatch& from, RecordBatch& to);

}  // namespace nanhunt::trace_testing
