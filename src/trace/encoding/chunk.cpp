// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/chunk.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/crc32c.h"
#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {

void store_chunk_header(const ChunkHeader& header, std::byte* out) {
  std::copy(kChunkMagic.begin(), kChunkMagic.end(), out);
  store(out + 4, header.type);
  store(out + 6, header.flags);
  store(out + 8, header.rows);
  store(out + 12, header.raw_size);
  store(out + 16, header.stored_size);
  store(out + 20, header.plain_size);
  store(out + 24, header.sequence);
  store(out + 32, header.payload_crc);
  store(out + 36, crc32c({out, 36}));
}

bool load_chunk_header(std::span<const std::byte> bytes, ChunkHeader& header) {
  const std::byte* at = bytes.data();
  if (!std::equal(kChunkMagic.begin(), kChunkMagic.end(), at)) return false;
  if (load<std::uint32_t>(at + 36) != crc32c(bytes.first(36))) return false;
  header.type = load<std::uint16_t>(at + 4);
  header.flags = load<std::uint16_t>(at + 6);
  header.rows = load<std::uint32_t>(at + 8);
  header.raw_size = load<std::uint32_t>(at + 12);
  header.stored_size = load<std::uint32_t>(at + 16);
  header.plain_size = load<std::uint32_t>(at + 20);
  header.sequence = load<std::uint64_t>(at + 24);
  header.payload_crc = load<std::uint32_t>(at + 32);
  if (header.rows > kMaxRows || header.raw_size > kMaxRawBytes || header.stored_size > header.raw_size) return false;
  if (header.plain_size > header.stored_size || header.sequence >> 63 != 0) return false;
  const std::uint64_t packed = header.stored_size - header.plain_size;
  return header.raw_size - header.plain_size <= packed * kMaxUnpackRatio;
}

ChunkPacker::ChunkPacker(int zstd_level) : zstd_(ZSTD_createCCtx()) {
  const int level = std::clamp(zstd_level, ZSTD_minCLevel(), ZSTD_maxCLevel());
  if (zstd_ != nullptr) ZSTD_CCtx_setParameter(zstd_, ZSTD_c_compressionLevel, level);
}

ChunkPacker::~ChunkPacker() { ZSTD_freeCCtx(zstd_); }

std::span<const std::byte> ChunkPacker::pack(ChunkHeader header, const ColumnWriter& columns) {
  const auto& packed = columns.packed();
  const auto& plain = columns.plain();
  if (packed.size() > kMaxRawBytes || plain.size() > kMaxRawBytes - packed.size()) return {};
  const std::size_t bound = std::max(ZSTD_compressBound(packed.size()), packed.size());
  if (const std::size_t need = kChunkHeaderBytes + bound + plain.size(); buffer_.size() < need) buffer_.resize(need);
  std::byte* payload = buffer_.data() + kChunkHeaderBytes;

  std::size_t packed_size = packed.size();
  if (zstd_ != nullptr && !packed.empty()) {
    const std::size_t size = ZSTD_compress2(zstd_, payload, bound, packed.data(), packed.size());
    if (!ZSTD_isError(size) && size < packed.size() && packed.size() <= size * kMaxUnpackRatio) {
      header.flags |= kFlagZstd;
      packed_size = size;
    }
  }
  if ((header.flags & kFlagZstd) == 0) std::copy(packed.begin(), packed.end(), payload);
  std::copy(plain.begin(), plain.end(), payload + packed_size);

  header.raw_size = static_cast<std::uint32_t>(packed.size() + plain.size());
  header.plain_size = static_cast<std::uint32_t>(plain.size());
  header.stored_size = static_cast<std::uint32_t>(packed_size + plain.size());
  header.payload_crc = crc32c({payload, header.stored_size});
  store_chunk_header(header, buffer_.data());
  return {buffer_.data(), kChunkHeaderBytes + header.stored_size};
}

ChunkUnpacker::ChunkUnpacker() : zstd_(ZSTD_createDCtx()) {}
ChunkUnpacker::~ChunkUnpacker() { ZSTD_freeDCtx(zstd_); }

bool ChunkUnpacker::unpack(const ChunkHeader& header, std::span<const std::byte> stored,
                           std::span<const std::byte>& packed, std::span<const std::byte>& plain) {
  packed = stored.first(header.stored_size - header.plain_size);
  plain = stored.subspan(packed.size(), header.plain_size);
  const std::size_t size = header.raw_size - header.plain_size;  // within the cap: load_chunk_header saw to it
  if ((header.flags & kFlagZstd) == 0) return packed.size() == size;
  if (zstd_ == nullptr || ZSTD_getFrameContentSize(packed.data(), packed.size()) != size) return false;
  if (ZSTD_findFrameCompressedSize(packed.data(), packed.size()) != packed.size()) return false;  // just one frame
  if (buffer_.size() < size) buffer_.resize(size);
  if (ZSTD_decompressDCtx(zstd_, buffer_.data(), size, packed.data(), packed.size()) != size) return false;
  packed = {buffer_.data(), size};
  return true;
}

}  // namespace nanhunt::trace
