// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/protobuf_fields.h"
#include "src/core/byte_order.h"

#include <bit>

namespace nanhunt::autopsy {

double ProtobufField::as_double() const { return std::bit_cast<double>(value); }
double ProtobufField::as_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(value)); }

bool ProtobufFields::fail() {
  damaged_ = true;
  left_ = {};
  return false;
}

bool ProtobufFields::read_varint(std::uint64_t& value) {
  value = 0;
  for (std::size_t i = 0; i < 10 && i < left_.size(); ++i) {  // 64 bits take ten bytes at most
    const auto byte = static_cast<unsigned char>(left_[i]);
    value |= static_cast<std::uint64_t>(byte & 0x7fu) << (7 * i);
    if ((byte & 0x80u) == 0) {
      left_.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

bool ProtobufFields::read_fixed(std::size_t bytes, std::uint64_t& value) {
  if (left_.size() < bytes) return false;
  value = load_little_endian(left_, bytes);
  left_.remove_prefix(bytes);
  return true;
}

bool ProtobufFields::next(ProtobufField& field) {
  if (left_.empty()) return false;
  std::uint64_t key = 0;
  if (!read_varint(key) || key >> 3 == 0 || key >> 3 > 0x1fffffffu) return fail();
  field.number = static_cast<std::uint32_t>(key >> 3);
  field.value = 0;
  field.bytes = {};
  switch (key & 7u) {
    case 0:
      field.wire = ProtobufField::Wire::kVarint;
      return read_varint(field.value) || fail();
    case 1:
      field.wire = ProtobufField::Wire::kFixed64;
      return read_fixed(8, field.value) || fail();
    case 5:
      field.wire = ProtobufField::Wire::kFixed32;
      return read_fixed(4, field.value) || fail();
    case 2: {
      field.wire = ProtobufField::Wire::kBytes;
      std::uint64_t size = 0;
      if (!read_varint(size) || size > left_.size()) return fail();
      field.bytes = left_.substr(0, static_cast<std::size_t>(size));
      left_.remove_prefix(static_cast<std::size_t>(size));
      return true;
    }
    default:
      return fail();  // groups are neither program's
  }
}

}  // namespace nanhunt::autopsy
