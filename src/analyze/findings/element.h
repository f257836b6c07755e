// SPDX-License-Identifier: Apache-2.0
// The first bad element of an origin, with the numbers that met in it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

using OtherSizes = std::set<std::int64_t>;  // ValueGraph::other_sizes

// Whether what runs in this phase has to do with the samples of the step.
bool about_the_batch(Phase phase);

std::optional<ElementEvidence> element_of(const Case& c, const OtherSizes* others);

}  // namespace nanhunt::analyze
