// SPDX-License-Identifier: Apache-2.0
// The decoder of one chunk's columns, past every checksum. Input: type, 3 bytes of rows, 2 bytes of where the plain
// part begins, then both parts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/trace/record_kind.h"
#include "tests/trace/damage/decode_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 6) return 0;
  const std::size_t rows = data[1] | std::size_t{data[2]} << 8 | std::size_t{data[3]} << 16;
  const auto payload = std::as_bytes(std::span(data + 6, size - 6));
  const std::size_t split = std::min<std::size_t>(data[4] | std::size_t{data[5]} << 8, payload.size());
  // Every kind and the index; the rest of the numbers is folded onto them so that no input is wasted.
  // NANHUNT_FUZZ_TYPE=4 makes it the fuzzer of that kind alone.
  static const char* const only = std::getenv("NANHUNT_FUZZ_TYPE");
  static const int fixed = only == nullptr ? 0 : std::atoi(only);
  std::uint16_t type = static_cast<std::uint16_t>(fixed != 0 ? fixed : data[0] % (nanhunt::trace::kKindCount + 1));
  if (type == 0) type = nanhunt::trace::kEndType;
  nanhunt::trace_testing::decode_columns(type, std::min<std::size_t>(rows, 65536),
                                         payload.first(payload.size() - split), payload.last(split));
  return 0;
}
