// SPDX-License-Identifier: Apache-2.0
// What the user of a run has named as harmless: findings that rest on it are told as that, and harm nobody.
#pragma once

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// A note of a run that begins so names a module, tensor or line of code, and why: "ignored by the user: PATH: REASON".
inline constexpr std::string_view kIgnoredNote = "ignored by the user: ";

// Of findings that are at such a path, below it, or of such a tensor.
void tell_ignored(std::vector<Finding>& findings, const Coverage& coverage);
// Reasons of the ignored findings that reached what is trained, as a clause; "": none did.
std::string ignored_harm(const std::vector<Finding>& findings);

}  // namespace nanhunt::analyze
