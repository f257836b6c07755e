// SPDX-License-Identifier: Apache-2.0
// What the recorder knows of ops by name. Three questions only: which ops can lose a value to zero in a way that can be
// counted, which input elements meet in one output element, and which ops write over contents that they do not read. An
// op that is not listed is recorded all the same; it just has no `flushed` count and its evidence shows the bad element
// alone.
#pragma once

#include <cstdint>
#include <string_view>

namespace nanhunt::record {

// When is an output element that is 0 a lost value? The exact result must be non-zero.
enum class FlushRule : std::uint8_t {
  kNotMeasured,
  kProduct,    // self * other, either may be a scalar: every factor is non-zero
  kQuotient,   // self / other: self is non-zero, other is not infinite
  kPower,      // self ^ exponent: exponent > 0: self is non-zero; exponent < 0: self is not infinite
  kCopy,       // same number in another format: it was not zero
  kSquareAdd,  // self + value * tensor1 * tensor2, with tensor1 and tensor2 the same value and value > 0: tensor1 is
               // non-zero. Needs old contents that are not negative (a second moment); refused where they are known to
               // be.
};

// Which elements of an input meet in output element i?
enum class ElementMap : std::uint8_t {
  kNone,         // sums, products of matrices, gathers: too many to list
  kSameShape,    // inputs of the output's shape at i, and single numbers; others are mixed over a dimension
  kElementwise,  // every input that broadcasts to the output, at i
};

struct OpTraits {
  FlushRule flush = FlushRule::kNotMeasured;
  ElementMap elements = ElementMap::kNone;
  bool ignores_old = false;  // in place, old contents do not matter: kOverwritesAll of src/analyze/op_table.cpp
};

// Names are the dispatcher's, with or without "aten::" and overload. `<op>_backward` maps elements as its forward op
// does.
OpTraits op_traits(std::string_view op);

}  // namespace nanhunt::record
