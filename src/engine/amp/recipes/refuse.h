// SPDX-License-Identifier: Apache-2.0
// How a recipe refuses what its library refuses.
#pragma once

#include <stdexcept>
#include <string>

namespace nanhunt::engine {

// In the library's own words.
[[noreturn]] inline void refuse(const std::string& text) { throw std::invalid_argument(text); }

}  // namespace nanhunt::engine
