// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/damage/forge.h"

#include <zstd.h>

#include <algorithm>

#include "src/trace/encoding/crc32c.h"

namespace nanhunt::trace_testing {

std::vector<ChunkPlace> chunks_of(const Bytes& segment) {
  std::vector<ChunkPlace> places;
  std::size_t at = trace::kFileHeaderBytes;
  while (at + trace::kChunkHeaderBytes <= segment.size()) {
    ChunkPlace place;
    place.offset = at;
    if (!trace::load_chunk_header(std::span(segment).subspan(at), place.header)) break;
    place.size = trace::kChunkHeaderBytes + place.header.stored_size;
    at += place.size;
    places.push_back(place);
  }
  return places;
}

Bytes file_header(std::uint16_t major, std::uint16_t minor) {
  trace::FileHeader header;
  header.major = major;
  header.minor = minor;
  const auto bytes = trace::store_file_header(header);
  return {bytes.begin(), bytes.end()};
}

Bytes chunk(trace::ChunkHeader header, const Bytes& payload) {
  header.stored_size = static_cast<std::uint32_t>(payload.size());
  header.payload_crc = trace::crc32c(payload);
  Bytes bytes(trace::kChunkHeaderBytes);
  trace::store_chunk_header(header, bytes.data());
  return bytes + payload;
}

Bytes compressed(const Bytes& raw) {
  Bytes packed(ZSTD_compressBound(raw.size()));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), 1));
  return packed;
}

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace nanhunt::trace_testing
