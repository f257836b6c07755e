// SPDX-License-Identifier: Apache-2.0
// Protobuf fields: the wire format without a schema, one message at a time. Reads no byte beyond the message, copies
// nothing and never recurses: a caller goes into a nested message by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nanhunt::autopsy {

struct ProtobufField {
  enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  std::uint32_t number = 0;
  Wire wire = Wire::kVarint;
  std::uint64_t value = 0;  // of a varint, or the bits of a fixed one
  std::string_view bytes;

  double as_double() const;  // of the bits of a fixed64
  double as_float() const;   // of the bits of a fixed32
};

class ProtobufFields {
 public:
  explicit ProtobufFields(std::string_view message) : left_(message) {}

  // The next field; false at the end and at a mistake.
  bool next(ProtobufField& field);
  bool damaged() const { return damaged_; }

 private:
  bool read_varint(std::uint64_t& value);
  bool read_fixed(std::size_t bytes, std::uint64_t& value);
  bool fail();

  std::string_view left_;
  bool damaged_ = false;
};

}  // namespace nanhunt::autopsy
