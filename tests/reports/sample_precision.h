// SPDX-License-Identifier: Apache-2.0
// Comparisons of fp32 with mixed precision, made up.
#pragma once

#include "nanhunt/precision.h"

namespace nanhunt::testing_reports {

// fp16 overflows in one layer and is cured by keeping it; bf16 is as good; O2 refuses; two batch sizes.
PrecisionComparison make_precision_comparison();
// Every recipe is as good as fp32.
PrecisionComparison make_good_comparison();
// The first one, with names that mean harm wherever a name can stand.
PrecisionComparison make_hostile_comparison();

}  // namespace nanhunt::testing_reports
