// SPDX-License-Identifier: Apache-2.0
// corruption, as an op shows it that read what is not finite in contents that were recorded as finite: something wrote
// them that no watched op was.
#include <fmt/format.h>

#include <cmath>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_stray_write(const Case& c) {
  if (!c.is_op() || !c.inputs_finite()) return std::nullopt;
  for (const EvidenceRecord* element : c.elements) {
    for (const Operand& operand : element->operands) {
      if (operand.value == 0 || std::isfinite(operand.number)) continue;
      Diagnosis d;
      d.title = fmt::format("{} of {} was written with nothing watched writing it: it was finite and is {}",
                            c.text(operand.slot), c.where().empty() ? c.op() : c.op() + " " + c.where(),
                            number(operand.number));
      d.explanation =
          "What the op read is not what had been recorded of its input, and no watched operation wrote it in between: a "
          "write past the framework does this, as through an array that shares the memory (NumPy) or a storage, and so "
          "does faulty memory.";
      add_if(d.evidence, c.element_text());
      d.advice = {"find-stray-write", "check-memory"};
      return d;
    }
  }
  return std::nullopt;
}

}  // namespace

extern const Rule kStrayWriteRule{FindingClass::kCorruption, diagnose_stray_write};

}  // namespace nanhunt::analyze
