// SPDX-License-Identifier: Apache-2.0
#include "reports/views/device_time_view.h"

#include <algorithm>

#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kMaxLines = 64;

double share(std::int64_t part, std::int64_t whole) {
  return whole <= 0 ? 0 : std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
}

DeviceTimeLine view_line(const DeviceTimeRow& row, const DeviceTime& time) {
  const auto or_dash = [](const std::string& text) { return text.empty() ? std::string("—") : clip(text, kNameLimit); };
  DeviceTimeLine line;
  line.operation = row.op.empty() ? "no watched operation" : clip(row.op, kNameLimit);
  line.layer = or_dash(row.module);
  line.phase = row.op.empty() ? "—" : std::string(phase_name(row.phase));
  line.time = row.timed == 0 ? "not known" : format_nanoseconds(row.duration_ns);
  line.share = row.timed == 0 || time.total_ns <= 0 ? "—" : format_percent(share(row.duration_ns, time.total_ns));
  line.kernels = format_count(row.kernels);
  line.kernel = or_dash(row.kernel);
  return line;
}

}  // namespace

std::string format_nanoseconds(std::int64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1000) return format_short(value, 3) + " ns";
  if (nanoseconds < 1'000'000) return format_short(value / 1e3, 3) + " µs";
  if (nanoseconds < 1'000'000'000) return format_short(value / 1e6, 3) + " ms";
  return format_short(value / 1e9, 3) + " s";
}

DeviceTimeView view_device_time(const DeviceTime& time, bool many_ranks) {
  DeviceTimeView view;
  view.summary =
      plural(time.kernels, "kernel", "kernels") + " ran for " + format_nanoseconds(time.total_ns) + " in all";
  if (many_ranks) view.summary += " on rank " + format_count(time.rank);
  if (time.total_ns > 0) {
    view.summary += "; nanhunt's own took " + format_percent(share(time.own_ns, time.total_ns)) + " of it (" +
                    format_nanoseconds(time.own_ns) + ")";
  }
  view.summary += ".";
  if (time.without_op_ns > 0) {
    view.summary += " No watched operation launched " + format_percent(share(time.without_op_ns, time.total_ns)) + ".";
  }
  if (time.untimed > 0) view.summary += " Of " + plural(time.untimed, "kernel", "kernels") + " no time is known.";
  for (std::size_t i = 0; i < time.rows.size() && i < kMaxLines; ++i)
    view.lines.push_back(view_line(time.rows[i], time));
  view.omitted = time.rows_omitted + (time.rows.size() - view.lines.size());
  return view;
}

}  // namespace nanhunt::reports
