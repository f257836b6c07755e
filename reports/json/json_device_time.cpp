// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_device_time.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kJsonRows = 64;

// Times are whole numbers of nanoseconds, beyond 2^53 only in a trace that lies.
json nanoseconds_to_json(std::int64_t nanoseconds) {
  return json_count(static_cast<std::uint64_t>(std::max<std::int64_t>(nanoseconds, 0)));
}

json row_to_json(const DeviceTimeRow& row) {
  return {{"module", json_text_or_null(row.module)},
          {"op", json_text_or_null(row.op)},
          {"phase", row.op.empty() ? json() : json(phase_name(row.phase))},
          {"kernel", json_text_or_null(row.kernel)},
          {"kernels", json_count(row.kernels)},
          {"timed", json_count(row.timed)},
          {"duration_ns", nanoseconds_to_json(row.duration_ns)}};
}

}  // namespace

json device_time_to_json(const DeviceTime& time) {
  json rows = json::array();
  for (std::size_t i = 0; i < time.rows.size() && i < kJsonRows; ++i) rows.push_back(row_to_json(time.rows[i]));
  const std::size_t shown = rows.size();
  const double total = static_cast<double>(time.total_ns);
  return {{"rank", time.rank},
          {"kernels", json_count(time.kernels)},
          {"untimed", json_count(time.untimed)},
          {"own_kernels", json_count(time.own_kernels)},
          {"total_ns", nanoseconds_to_json(time.total_ns)},
          {"own_ns", nanoseconds_to_json(time.own_ns)},
          {"own_share", time.total_ns > 0 ? json_number(static_cast<double>(time.own_ns) / total) : json()},
          {"without_op_ns", nanoseconds_to_json(time.without_op_ns)},
          {"rows", std::move(rows)},
          {"rows_omitted", json_count(time.rows_omitted + (time.rows.size() - shown))},
          {"omitted_ns", nanoseconds_to_json(time.omitted_ns)}};
}

}  // namespace nanhunt::reports
