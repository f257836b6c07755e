// SPDX-License-Identifier: Apache-2.0
#include "src/core/version.h"

namespace nanhunt {

std::string_view version() { return NANHUNT_VERSION; }

}  // namespace nanhunt
