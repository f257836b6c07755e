// SPDX-License-Identifier: Apache-2.0
// What must be said of a run, what was said, and whether that is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nanhunt/analyzer.h"

namespace nanhunt::campaign {

// What is none is arbitrary or many-valued and not scored; "": the finding must name none.
struct Expected {
  FindingClass cls = FindingClass::kOverflow;
  std::optional<std::uint32_t> step;
  std::optional<Phase> phase;
  std::optional<std::string> module, op;
};

// What the verdict rests on; none where it rests on nothing, or on information.
std::optional<Finding> headline_of(const Analysis& analysis);
bool origin_right(const Expected& expected, const std::optional<Finding>& answer);
bool class_right(const Expected& expected, const std::optional<Finding>& answer);
std::string text_of(const std::optional<Finding>& answer);

}  // namespace nanhunt::campaign
