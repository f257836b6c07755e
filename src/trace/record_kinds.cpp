// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "src/trace/record_kind.h"

namespace nanhunt::trace {

std::span<const RecordKind> record_kinds() {
  static const std::array<RecordKind, kKindCount> kinds = {
      kStrings,    kLayouts,     kValues, kOps,    kMarks,     kSampleIds, kSteps, kEvidence,
      kEndsOfLife, kExperiments, kDrops,  kScaler, kHistograms, kRetired,
      kHealth,     kNorms,       kReplays, kChanged, kProbes,  kCaptures, kNotes,
      kCollectives, kKernels};
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
