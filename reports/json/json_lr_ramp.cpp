// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_lr_ramp.h"

#include "reports/json/json_values.h"

namespace nanhunt::reports {

using nlohmann::json;

json lr_ramp_to_json(const LrRamp& ramp) {
  json points = json::array();
  for (const LrPoint& point : ramp.points) {
    points.push_back({{"step", point.step},
                      {"lr", json_number(point.lr)},
                      {"loss", json_number(point.loss)},
                      {"smoothed", json_number(point.smoothed)}});
  }
  return {{"first_step", ramp.first_step},
          {"last_step", ramp.last_step},
          {"points", std::move(points)},
          {"stops_at", ramp.stops_at ? json(*ramp.stops_at) : json()},
          {"suggestion", ramp.suggestion ? json{{"steepest", json_number(ramp.suggestion->steepest)},
                                                {"tenth_of_lowest", json_number(ramp.suggestion->tenth_of_lowest)}}
                                         : json()}};
}

}  // namespace nanhunt::reports
