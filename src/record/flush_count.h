// SPDX-License-Identifier: Apache-2.0
// Counts the elements of an op's output that were stored as 0 although the exact result is not 0. op_table.h says
// for which ops, and when.
#pragma once

#include <cstdint>
#include <span>

#include "nanhunt/event.h"
#include "nanhunt/tensor_stats.h"
#include "src/record/op_table.h"

namespace nanhunt::record {

// An input of the op as the recorder knows it.
struct FlushInput {
  const OpInput* input = nullptr;
  const TensorStats* stats = nullptr;  // of the contents that were read, counts or more; nullptr: not known
  std::uint64_t value = 0;             // id
};

// -1: not measured. `output_stats` has counts. Reads elements only where the zero counts of the inputs do not settle
// it.
std::int64_t count_flushed(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars,
                           const TensorView& output, const TensorStats& output_stats);

}  // namespace nanhunt::record
