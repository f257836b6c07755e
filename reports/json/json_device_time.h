// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

nlohmann::json device_time_to_json(const DeviceTime& time);

}  // namespace nanhunt::reports
