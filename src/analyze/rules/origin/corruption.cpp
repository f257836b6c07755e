// SPDX-License-Identifier: Apache-2.0
// corruption: contents changed although nothing wrote them and no unwatched call had them.
#include "src/analyze/rules/changed.h"
#include "src/analyze/rules/registry.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_corruption(const Case& c) {
  if (c.birth.kind != BirthKind::kUnseenWrite || c.birth.change->opaque) return std::nullopt;
  return diagnose_change(c);
}

}  // namespace

extern const Rule kCorruptionRule{FindingClass::kCorruption, diagnose_corruption};

}  // namespace nanhunt::analyze
