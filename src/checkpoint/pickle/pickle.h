// SPDX-License-Identifier: Apache-2.0
// A pickle read as data: its opcodes build values and run nothing. What it would import is kept by name, and what it
// would call is kept as the name with its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/status.h"

namespace nanhunt::checkpoint {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,
  kObject,
  kPersistent
};

using PickleRef = std::uint32_t;

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  bool big = false;            // kInt beyond 64 bits: only that it was one is known
  std::int64_t integer = 0;    // kBool, kInt
  double real = 0;             // kFloat
  std::string_view text = {};  // kString, kBytes: in the pickle's bytes. kGlobal: "module.name", in Pickle::names
  // kTuple, kList, kSet: elements. kDict: key, value, key, value. kPersistent: the id.
  // kObject: what is called, its arguments as a tuple, then states that were set and items that were added.
  std::vector<PickleRef> items = {};
};

// Values may be shared and may hold themselves: whoever walks them bounds depth and number.
struct Pickle {
  std::vector<PickleValue> values;
  PickleRef root = 0;
  std::size_t bytes = 0;             // how long the pickle is: others may follow it
  std::vector<std::string> globals;  // "module.name" of all that loading it would import, sorted, each once

  const PickleValue& at(PickleRef ref) const { return values[ref]; }
};

// `bytes` must outlive the result. kDamaged where the bytes end before the pickle does, kUnreadable where it is none.
Result<Pickle> parse_pickle(std::string_view bytes);

}  // namespace nanhunt::checkpoint
