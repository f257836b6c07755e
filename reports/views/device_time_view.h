// SPDX-License-Identifier: Apache-2.0
// What a GPU ran for each operation, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

struct DeviceTimeLine {
  std::string operation, layer, phase;  // "—" where there is none
  std::string time, share, kernels, kernel;
};
struct DeviceTimeView {
  std::string summary;
  std::vector<DeviceTimeLine> lines;  // longest first, at most 64
  std::uint64_t omitted = 0;
};

DeviceTimeView view_device_time(const DeviceTime& time, bool many_ranks);
std::string format_nanoseconds(std::int64_t nanoseconds);  // "1.23 ms"

}  // namespace nanhunt::reports
