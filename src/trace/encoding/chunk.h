// SPDX-License-Identifier: Apache-2.0
// One chunk: header, packing, checking. The layout is FORMAT.md's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/trace/encoding/columns.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace nanhunt::trace {

inline constexpr std::array<std::byte, 4> kChunkMagic = {std::byte{0x4e}, std::byte{0x48}, std::byte{0x63},
                                                         std::byte{0x01}};
inline constexpr std::size_t kChunkHeaderBytes = 40;

enum ChunkFlag : std::uint16_t {
  kFlagZstd = 1,
  kFlagFrameStart = 2,
  kFlagRestated = 4,
  kFlagFinal = 8,
};
inline constexpr std::uint16_t kKnownFlags = 15;
inline constexpr std::uint16_t kCriticalFlags = 255;  // of these, unknown ones make the chunk unknown

struct ChunkHeader {
  std::uint16_t type = 0, flags = 0;
  std::uint32_t rows = 0, raw_size = 0, stored_size = 0, plain_size = 0;
  std::uint64_t sequence = 0;
  std::uint32_t payload_crc = 0;

  bool understood() const { return (flags & kCriticalFlags & ~kKnownFlags) == 0; }
};

void store_chunk_header(const ChunkHeader& header, std::byte* out);
// False unless magic and CRC hold and every size keeps its cap. `bytes` has at least kChunkHeaderBytes.
bool load_chunk_header(std::span<const std::byte> bytes, ChunkHeader& header);

// Builds chunks; keeps its buffers and compressor between them.
class ChunkPacker {
 public:
  explicit ChunkPacker(int zstd_level);
  ~ChunkPacker();
  ChunkPacker(const ChunkPacker&) = delete;
  ChunkPacker& operator=(const ChunkPacker&) = delete;

  // The whole chunk, valid until the next call; empty if the payload is over the cap.
  // Sizes, CRCs and kFlagZstd are filled in here.
  std::span<const std::byte> pack(ChunkHeader header, const ColumnWriter& columns);

 private:
  ZSTD_CCtx_s* zstd_;  // nullptr if zstd could not be had: chunks are then stored as they are
  std::vector<std::byte> buffer_;
};

class ChunkUnpacker {
 public:
  ChunkUnpacker();
  ~ChunkUnpacker();
  ChunkUnpacker(const ChunkUnpacker&) = delete;
  ChunkUnpacker& operator=(const ChunkUnpacker&) = delete;

  // `stored` is what follows the header, its CRC already checked. The spans are valid until the next call
  // and while `stored` is. False if it does not unpack to exactly what the header says.
  bool unpack(const ChunkHeader& header, std::span<const std::byte> stored, std::span<const std::byte>& packed,
              std::span<const std::byte>& plain);

 private:
  ZSTD_DCtx_s* zstd_;
  std::vector<std::byte> buffer_;
};

}  // namespace nanhunt::trace
