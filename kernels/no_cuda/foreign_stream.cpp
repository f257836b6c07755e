// SPDX-License-Identifier: Apache-2.0
#include "kernels/foreign_stream.h"

#include "kernels/device_query.h"

namespace nanhunt::kernels {

std::unique_ptr<ForeignStream> ForeignStream::open(int /*device*/, DeviceStream /*stream*/, std::string& why) noexcept {
  try {
    static_cast<void>(query_devices(why));
  } catch (...) {  // no memory for the words
  }
  return nullptr;
}

}  // namespace nanhunt::kernels
