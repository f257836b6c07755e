// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/registry.h"

#include <array>

namespace nanhunt::analyze {

std::span<const Rule> all_rules() {
  // Causes before effects: a lost guard and a flushed denominator are also divisions by zero.
  static const std::array rules = {kApiMisuseRule, kCompiledRule, kBadInputRule, kBadStateRule,
                                   kCorruptionRule, kUnseenKernelRule, kUninitialisedRule, kCommRule,
                                   kWrittenRule, kStrayWriteRule, kEpsUnderflowRule, kUnderflowRule,
                                   kDivideByZeroRule, kInvalidRule, kOverflowRule, kUnexplainedRule};
  return rules;
}

}  // namespace nanhunt::analyze
