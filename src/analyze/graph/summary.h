// SPDX-License-Identifier: Apache-2.0
// Places and tensors of the trace as a finding has them: texts in place of ids.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/birth.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

OpPlace place_of(const OpRef& at, const Names& names);
// "div_backward in fc1", "addcdiv_ in the update of fc1.weight", "a batch tensor".
std::string place_text(const OpRef& at, const Names& names);
// "fc1.weight.exp_avg", "fc1.weight.grad", "" when it has no name.
std::string arg_name(const ArgSnapshot& arg, const Names& names);
TensorSummary summarise(const ArgSnapshot& arg, const char* role, int index, const Names& names);

}  // namespace nanhunt::analyze
