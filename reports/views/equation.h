// SPDX-License-Identifier: Apache-2.0
// The numbers that met in a bad element as arithmetic, with the names that the program's line has for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

// "0 / 0 = NaN", "log(0) = -Inf", "grad_output = 0, result = 0: NaN"; empty: no operand is known.
std::string equation_of(std::string_view op, const ElementEvidence& element);

// What an input of an op is called: "numerator" and "denominator" say more than PyTorch's "self" and "other".
std::string part_of_quotient(std::string_view op, std::string_view slot, std::string otherwise);

// What one line of Python calls the two sides of the only such operation in it: "h.sum(1) / n" of "y = h.sum(1) / n".
// Empty where the op has no sign of its own, or where the statement does not have it just once: as a sign, as a method,
// or inside of a function of PyTorch's. `below`: the lines that follow, with which the statement may go on.
std::string operation_in_line(std::string_view op, std::string_view line, std::span<const std::string> below = {});

// What such a line divides a number by, which runs as the reciprocal of it: "n" of "y = 1 / n". Empty of any other op.
std::string divisor_in_line(std::string_view op, std::string_view line, std::span<const std::string> below = {});

}  // namespace nanhunt::reports
