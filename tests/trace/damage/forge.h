// SPDX-License-Identifier: Apache-2.0
// Hand-made segments for tests: whole chunks of a file, and chunks whose checksums are right but whose contents lie.
#pragma once

#include <cstddef>
#include <vector>

#include "src/trace/encoding/chunk.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::trace_testing {

using Bytes = std::vector<std::byte>;

struct ChunkPlace {
  std::size_t offset = 0, size = 0;  // header and payload
  trace::ChunkHeader header;
};
std::vector<ChunkPlace> chunks_of(const Bytes& segment);

// Header of an otherwise plausible segment.
Bytes file_header(std::uint16_t major = 1, std::uint16_t minor = 0);
// A chunk around `payload` as given: stored_size and CRCs are set, all else is the caller's.
Bytes chunk(trace::ChunkHeader header, const Bytes& payload);
// The same, with the payload compressed as `packed` and raw_size left to the caller.
Bytes compressed(const Bytes& raw);

Bytes operator+(Bytes left, const Bytes& right);

}  // namespace nanhunt::trace_testing
