// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_query.h"

namespace nanhunt::kernels {
namespace {

// Holds with a GPU, without one, without a driver and in a build without CUDA.
TEST(DeviceQuery, lists_devices_or_says_why_there_are_none) {
  std::string why_none = "stale";
  const std::vector<DeviceInfo> devices = query_devices(why_none);
  EXPECT_EQ(devices.empty(), !why_none.empty());
  for (const DeviceInfo& device : devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.compute_major, 0);
    EXPECT_GT(device.memory_bytes, 0u);
  }
}

TEST(DeviceQuery, answers_the_same_twice) {
  std::string first_reason;
  std::string second_reason;
  const std::size_t first = query_devices(first_reason).size();
  EXPECT_EQ(query_devices(second_reason).size(), first);
  EXPECT_EQ(second_reason, first_reason);
}

}  // namespace
}  // namespace nanhunt::kernels
