// SPDX-License-Identifier: Apache-2.0
// unseen_kernel: contents changed while a call whose inside is not watched had them.
#include "src/analyze/rules/changed.h"
#include "src/analyze/rules/registry.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_unseen_kernel(const Case& c) {
  if (c.birth.kind != BirthKind::kUnseenWrite || !c.birth.change->opaque) return std::nullopt;
  return diagnose_change(c);
}

}  // namespace

extern const Rule kUnseenKernelRule{FindingClass::kUnseenKernel, diagnose_unseen_kernel};

}  // namespace nanhunt::analyze
