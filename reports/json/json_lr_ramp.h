// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

nlohmann::json lr_ramp_to_json(const LrRamp& ramp);

}  // namespace nanhunt::reports
