// SPDX-License-Identifier: Apache-2.0
// One list of every op in nanhunt/engine/ops.h, each with ways to call it. Tests of gradients, of notifications and of
// bits with and without an observer all run over it; a test compares it with the header.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {

struct OpCase {
  std::string op;     // function name in ops.h
  std::string label;  // unique, a test name
  std::vector<Tensor> inputs;
  GradFunction call;
  bool differentiable = true;
};
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.label; }

// Parts of op_cases(), and what observers are told about them.
std::vector<OpCase> transformer_op_cases();
std::vector<std::pair<std::string, std::vector<std::string>>> transformer_op_lines();
std::vector<OpCase> vision_op_cases();
std::vector<std::pair<std::string, std::vector<std::string>>> vision_op_lines();

std::vector<OpCase> op_cases();  // fresh inputs: fp64, the floating ones require gradients

// In-place ops have no gradient; `call` writes to its first input.
std::vector<OpCase> inplace_cases();

}  // namespace nanhunt::engine::testing
