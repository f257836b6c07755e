// SPDX-License-Identifier: Apache-2.0
// Matrix products through BLAS, for the ops built on them. An operand is the last two dimensions of a tensor, once or
// for each index of a leading batch dimension.
#pragma once

#include <string_view>
#include <vector>

#include "src/engine/ops/op.h"

namespace nanhunt::engine {

// True when columns lie one after the other in memory: a transposed matrix.
bool is_by_columns(const Tensor& matrix);
Tensor transposed(const Tensor& matrix);  // view, the last two dimensions exchanged

// left @ right plus `bias` (broadcast) when it is defined, rounded once to left's dtype. fp64 multiplies in
// fp64, the others in fp32. Both have 2 or 3 dimensions and the same batch.
Tensor multiply(std::string_view op, const Tensor& left, const Tensor& right, const Tensor& bias = {});

// The gradient left @ right of one operand, laid out like that operand: a transposed weight's gradient comes
// out dense after the transpose's own backward. Undefined when the edge does not want it.
Tensor operand_gradient(std::string_view op, const Edge& edge, bool by_columns, const Tensor& left,
                        const Tensor& right);

// Two floating operands of one dtype with `dims` dimensions, whose sizes fit.
void check_operands(std::string_view op, int dims, const Tensor& left, std::string_view left_slot, const Tensor& right,
                    std::string_view right_slot);

Tensor mm(const Tensor& self, const Tensor& mat2);  // 2-D op

}  // namespace nanhunt::engine
