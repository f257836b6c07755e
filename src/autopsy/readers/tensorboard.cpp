// SPDX-License-Identifier: Apache-2.0
// TensorBoard: Event messages in TFRecords, each with the values of one step.
#include <bit>

#include "src/autopsy/framed_records.h"
#include "src/autopsy/protobuf_fields.h"
#include "src/autopsy/readers/reader.h"
#include "src/core/byte_order.h"

namespace nanhunt::autopsy {
namespace {

// The one number of a TensorProto; nothing of a tensor with more.
std::optional<double> scalar_of(std::string_view tensor) {
  constexpr std::uint64_t kFloat = 1, kDouble = 2;
  std::uint64_t type = kFloat;
  std::optional<double> value;
  std::string_view content;
  ProtobufFields fields(tensor);
  for (ProtobufField field; fields.next(field);) {
    using Wire = ProtobufField::Wire;
    if (field.number == 1 && field.wire == Wire::kVarint) type = field.value;
    if (field.number == 4 && field.wire == Wire::kBytes) content = field.bytes;
    if (field.number == 5 && field.wire == Wire::kFixed32) value = field.as_float();
    if (field.number == 6 && field.wire == Wire::kFixed64) value = field.as_double();
    if (field.number == 5 && field.wire == Wire::kBytes && field.bytes.size() == 4) {
      value = std::bit_cast<float>(static_cast<std::uint32_t>(load_little_endian(field.bytes, 4)));
    }
    if (field.number == 6 && field.wire == Wire::kBytes && field.bytes.size() == 8) {
      value = std::bit_cast<double>(load_little_endian(field.bytes, 8));
    }
  }
  if (fields.damaged()) return std::nullopt;
  if (type == kFloat && content.size() == 4) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(load_little_endian(content, 4)));
  }
  if (type == kDouble && content.size() == 8) return std::bit_cast<double>(load_little_endian(content, 8));
  return value;
}

struct TaggedValue {
  std::string_view tag;
  std::optional<double> value;
};

TaggedValue summary_value_of(std::string_view message) {
  TaggedValue out;
  ProtobufFields fields(message);
  for (ProtobufField field; fields.next(field);) {
    if (field.number == 1 && field.wire == ProtobufField::Wire::kBytes) out.tag = field.bytes;
    if (field.number == 2 && field.wire == ProtobufField::Wire::kFixed32) out.value = field.as_float();
    if (field.number == 8 && field.wire == ProtobufField::Wire::kBytes) out.value = scalar_of(field.bytes);
  }
  if (fields.damaged()) return {};
  return out;
}

void read_event(std::string_view event, EvidenceBuilder& out) {
  std::int64_t step = 0;
  std::string_view summary;
  ProtobufFields fields(event);
  for (ProtobufField field; fields.next(field);) {
    if (field.number == 2 && field.wire == ProtobufField::Wire::kVarint) step = static_cast<std::int64_t>(field.value);
    if (field.number == 5 && field.wire == ProtobufField::Wire::kBytes) summary = field.bytes;
  }
  if (fields.damaged()) out.set_damage("an event is no valid message");
  ProtobufFields values(summary);
  for (ProtobufField field; values.next(field);) {
    if (field.number != 1 || field.wire != ProtobufField::Wire::kBytes) continue;
    const TaggedValue one = summary_value_of(field.bytes);
    if (one.value) out.add(one.tag, static_cast<double>(step), Unit::kStep, *one.value);
  }
}

}  // namespace

void read_tensorboard(std::string_view file, std::string_view, EvidenceBuilder& out) {
  out.set_damage(read_tfrecords(file, [&](std::string_view record) { read_event(record, out); }));
}

}  // namespace nanhunt::autopsy
