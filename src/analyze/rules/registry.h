// SPDX-License-Identifier: Apache-2.0
// One line per rule; registry.cpp gives them their order.
#pragma once

#include "src/analyze/rules/rule.h"

namespace nanhunt::analyze {

extern const Rule kApiMisuseRule;
extern const Rule kBadInputRule;
extern const Rule kBadStateRule;
extern const Rule kCorruptionRule;
extern const Rule kStrayWriteRule;
extern const Rule kUnseenKernelRule;
extern const Rule kWrittenRule;
extern const Rule kUninitialisedRule;
extern const Rule kCommRule;
extern const Rule kCompiledRule;
extern const Rule kEpsUnderflowRule;
extern const Rule kUnderflowRule;
extern const Rule kDivideByZeroRule;
extern const Rule kInvalidRule;
extern const Rule kOverflowRule;
extern const Rule kUnexplainedRule;

}  // namespace nanhunt::analyze
