// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "src/trace/run/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = nanhunt::trace::parse_safetensors({reinterpret_cast<const char*>(data), size}, "input");
  return read.is_ok() && read->arrays.size() > size ? -1 : 0;
}
