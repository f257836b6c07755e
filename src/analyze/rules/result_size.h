// SPDX-License-Identifier: Apache-2.0
// How large the exact results of an op are, as far as its operands tell: would a wider format have held them?
#pragma once

#include <limits>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

enum class Fit : std::uint8_t { kYes, kNo, kUnknown };

struct ResultSize {
  double at_least = 0;                                        // some result is this large
  double at_most = std::numeric_limits<double>::infinity();  // none is larger
  Fit fit(DType dtype) const;
};

// Of a birth at an op.
ResultSize compute_result_size(const Case& c);

}  // namespace nanhunt::analyze
