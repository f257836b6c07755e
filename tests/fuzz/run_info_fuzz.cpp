// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "src/trace/run/run_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nanhunt::RunInfo info;
  nanhunt::trace::parse_run_info({reinterpret_cast<const char*>(data), size}, info);
  return 0;
}
