// SPDX-License-Identifier: Apache-2.0
// Counts the elements of an op's output that were stored as 0 although the exact result is not 0. src/core/ops says
// for which ops, and when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/tensor_stats.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::record {

// An input of the op as the recorder knows it.
struct FlushInput {
  const OpInput* input = nullptr;
  const TensorStats* stats = nullptr;  // of the contents that were read, counts or more; nullptr: not known
  std::uint64_t value = 0;             // id
};

// What an element of an input must be for a 0 that it made to be a lost value.
struct FlushFactor {
  std::size_t input = 0;     // index among the op's inputs
  bool must_be_nonzero = true;  // false: it must not be infinite
};
// The factors of the rule, for whoever counts elements where the host cannot read; empty: not measurable.
std::vector<FlushFactor> flush_factors(FlushRule rule, std::span<const FlushInput> inputs,
                                       std::span<const OpScalar> scalars);
// As count_flushed(), but reads no element: kNeedsElements where the counts alone do not settle it.
inline constexpr std::int64_t kNeedsElements = -2;
std::int64_t settle_flushed(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars,
                            DType output_dtype, const TensorStats& output_stats);

// -1: not measured. `output_stats` has counts. Reads elements only where the zero counts of the inputs do not settle
// it.
std::int64_t count_flushed(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars,
                           const TensorView& output, const TensorStats& output_stats);

}  // namespace nanhunt::record
