// SPDX-License-Identifier: Apache-2.0
// The numbers that met in a bad output element, taken while the data is still there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/tensor_view.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::record {

enum class BadKind : std::uint8_t { kInf, kNan };

// Flat row-major index of the first such element, -1: none. By bit pattern.
std::int64_t find_first(const TensorView& tensor, BadKind kind);

struct OperandNumber {
  std::size_t input = 0;  // index among the op's inputs
  std::int64_t flat_index = -1;
  double number = 0;
};

// Element `flat_index` of `tensor` as a double (row-major logical index).
double element_at(const TensorView& tensor, std::int64_t flat_index);

// The input elements that meet in element `flat_index` of an output of these sizes, as `map` allows. Inputs without
// data, masks and indices are left out.
std::vector<OperandNumber> operands_at(ElementMap map, std::span<const OpInput> inputs,
                                       std::span<const std::int64_t> sizes, std::int64_t flat_index);

}  // namespace nanhunt::record
