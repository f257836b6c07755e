// SPDX-License-Identifier: Apache-2.0
// What was bad in a program's data before it trained.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// What hooks note of an attempt that the training of the same process followed.
inline constexpr std::string_view kBeforeTraining =
    "forwards before the training began, which are an attempt of their own";
// ... and of one that begins with such forwards: how many steps they are.
inline constexpr std::string_view kFirstSteps = "forwards before the training began that are its first steps";

// Data that were bad before a training that is sound: none of it came to it, so it becomes information. `trained`: how
// many of the attempts, the first ones, are those of the training.
void excuse_before_training(std::vector<Analysis>& attempts, std::size_t trained);

}  // namespace nanhunt::analyze
