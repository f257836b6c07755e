// SPDX-License-Identifier: Apache-2.0
// What a report says, a line for each thing that it says: for runs of which the same must be told.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"

namespace nanhunt::testing_support {

std::string told(const Analysis& analysis);

}  // namespace nanhunt::testing_support
