// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_session.h"

#include <string>

#include "kernels/device_query.h"

namespace nanhunt::kernels {

Result<std::unique_ptr<DeviceSession>> DeviceSession::open(int) {
  std::string why_none;
  static_cast<void>(query_devices(why_none));
  return Status(StatusCode::kUnsupported, why_none);
}

}  // namespace nanhunt::kernels
