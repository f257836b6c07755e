// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "src/trace/record_kind.h"

namespace nanhunt::trace {

std::span<const RecordKind> record_kinds() {
#define NANHUNT_LIST_KIND(kind, list) kind,
  static const std::array<RecordKind, kKindCount> kinds = {
      NANHUNT_TABLE_KINDS(NANHUNT_LIST_KIND) NANHUNT_EVENT_KINDS(NANHUNT_LIST_KIND)};
#undef NANHUNT_LIST_KIND
  return kinds;
}

const RecordKind* find_record_kind(std::uint16_t type) {
  if (type == 0 || type > kKindCount) return nullptr;
  return &record_kinds()[type - 1u];
}

std::string_view record_kind_name(std::uint16_t type) {
  if (type == kEndType) return "end";
  const RecordKind* kind = find_record_kind(type);
  return kind != nullptr ? kind->name : "unknown";
}

}  // namespace nanhunt::trace
