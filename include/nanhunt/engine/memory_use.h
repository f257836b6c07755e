// SPDX-License-Identifier: Apache-2.0
// How much memory a training step takes, and what for.
#pragma once

#include "nanhunt/engine/trainer.h"
#include "nanhunt/precision.h"

namespace nanhunt::engine {

// Runs one step of `trainer` and counts the tensors that begin and end in it, on this thread. Parameters, buffers,
// masters and state count from the start of the step, so take one after the first step that the optimizer made: its
// state is there then. What else was alive before the step is not counted. Throws what the step throws.
StepMemory measure_step_memory(Trainer& trainer);

}  // namespace nanhunt::engine
