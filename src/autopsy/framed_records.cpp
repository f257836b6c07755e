// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/framed_records.h"

#include <array>
#include <cstdint>
#include <span>

#include "src/autopsy/protobuf_fields.h"
#include "src/core/byte_order.h"
#include "src/trace/encoding/crc32c.h"

namespace nanhunt::autopsy {
namespace {

std::uint32_t masked_crc32c(std::string_view data) {
  const std::uint32_t crc = trace::crc32c(std::as_bytes(std::span(data.data(), data.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// CRC-32 of zlib, which W&B takes where LevelDB takes CRC-32C.
std::uint32_t zlib_crc32(std::uint8_t type, std::string_view data) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
      table[i] = crc;
    }
    return table;
  }();
  std::uint32_t crc = 0xffffffffu;
  crc = (crc >> 8) ^ kTable[(crc ^ type) & 0xffu];
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~crc;
}

std::string damage_at(std::string_view what, std::size_t offset) {
  return std::string(what) + " at byte " + std::to_string(offset) + ": the rest was not read";
}

}  // namespace

std::string read_tfrecords(std::string_view file, const RecordVisitor& visit) {
  constexpr std::size_t kHead = 12, kFoot = 4;
  std::size_t at = 0;
  while (at < file.size()) {
    const std::string_view left = file.substr(at);
    if (left.size() < kHead) return damage_at("the file ends within a record", at);
    if (load_little_endian(left.substr(8), 4) != masked_crc32c(left.substr(0, 8))) {
      return damage_at("the checksum of a length is wrong", at);
    }
    const std::uint64_t size = load_little_endian(left, 8);
    if (size > left.size() - kHead || left.size() - kHead - size < kFoot) {
      return damage_at("the file ends within a record", at);
    }
    const std::string_view data = left.substr(kHead, static_cast<std::size_t>(size));
    if (load_little_endian(left.substr(kHead + data.size()), 4) != masked_crc32c(data)) {
      return damage_at("the checksum of a record is wrong", at);
    }
    visit(data);
    at += kHead + data.size() + kFoot;
  }
  return {};
}

std::string read_wandb_log(std::string_view file, const RecordVisitor& visit) {
  constexpr std::size_t kHead = 7, kBlock = 32768;
  enum : std::uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
  if (file.size() < kHead || !file.starts_with(":W&B")) return "it does not begin like a W&B file";
  std::size_t at = kHead;
  std::string parts;
  bool open = false;
  while (at < file.size()) {
    const std::size_t room = kBlock - at % kBlock;
    if (room < kHead) {  // the end of a block is too short for a fragment, and filled with zeros
      at += room;
      continue;
    }
    const std::string_view left = file.substr(at, room);
    if (left.size() < kHead) return damage_at("the file ends within a record", at);
    const auto size = static_cast<std::size_t>(load_little_endian(left.substr(4), 2));
    const auto type = static_cast<std::uint8_t>(left[6]);
    if (size > left.size() - kHead) return damage_at("a record ends beyond its block or the file", at);
    const std::string_view data = left.substr(kHead, size);
    if (load_little_endian(left, 4) != zlib_crc32(type, data))
      return damage_at("the checksum of a record is wrong", at);
    const bool begins = type == kFull || type == kFirst;
    if (type < kFull || type > kLast || begins == open) return damage_at("a part of a record is out of order", at);
    if (type == kFull) {
      visit(data);
    } else {
      if (type == kFirst) parts.clear();
      parts += data;
      open = type != kLast;
      if (!open) visit(parts);
    }
    at += kHead + size;
  }
  return open ? damage_at("the file ends within a record", file.size()) : std::string();
}

}  // namespace nanhunt::autopsy
