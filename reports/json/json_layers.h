// SPDX-License-Identifier: Apache-2.0
// The loss scaler and the layers of a run as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nanhunt/analyzer.h"
#include "reports/views/layer_planes.h"

namespace nanhunt::reports {

nlohmann::json scaler_to_json(const ScalerSection& scaler);
nlohmann::json layer_to_json(const LayerSummary& layer);
nlohmann::json planes_to_json(const LayerPlanes& planes);  // null when there is no map

}  // namespace nanhunt::reports
