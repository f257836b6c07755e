// SPDX-License-Identifier: Apache-2.0
// The recorder over any writer: Recorder::open() gives it a trace file, tests give it one that is slow, blocks or
// fails.
#pragma once

#include <memory>

#include "nanhunt/recorder.h"
#include "nanhunt/trace.h"

namespace nanhunt::record {

// Takes the writer; only the recorder's own thread uses it from then on.
Result<std::unique_ptr<Recorder>> make_recorder(const RecorderOptions& options, std::unique_ptr<TraceWriter> writer);

}  // namespace nanhunt::record
