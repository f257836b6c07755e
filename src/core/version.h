// SPDX-License-Identifier: Apache-2.0
// The version of this build, as CMake's project() states it.
#pragma once

#include <string_view>

namespace nanhunt {

std::string_view version();  // "MAJOR.MINOR.PATCH"

}  // namespace nanhunt
