// SPDX-License-Identifier: Apache-2.0
// One finding as report.json has it (schema/nanhunt.report.schema.json, $defs/finding).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

nlohmann::json finding_to_json(const Finding& finding);

}  // namespace nanhunt::reports
