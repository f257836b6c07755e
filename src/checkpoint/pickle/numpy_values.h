// SPDX-License-Identifier: Apache-2.0
// NumPy arrays and scalars in a pickle: what they are, and their bytes, which stand in the pickle itself.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/pickle/element_format.h"
#include "src/checkpoint/pickle/pickle.h"

namespace nanhunt::checkpoint {

struct NumpyValue {
  enum class Kind : std::uint8_t { kArray, kScalar };
  Kind kind = Kind::kArray;
  const ElementFormat* format = nullptr;  // null: none that is read
  std::string dtype;                      // in NumPy's words: "f4", "O8"
  bool swapped = false;                   // big-endian
  bool known = false;                     // `sizes` and `bytes` are those of the array
  bool first_index_fastest = false;       // Fortran's order
  std::vector<std::int64_t> sizes;
  PickleRef bytes = 0;

  // Neither numbers nor objects that may hold some: text, dates.
  bool is_text() const { return !dtype.empty() && std::string_view("SUMm").find(dtype[0]) != std::string_view::npos; }
  bool is_of_objects() const { return !dtype.empty() && dtype[0] == 'O'; }
};

// What a call makes; empty: no NumPy array and no scalar.
std::optional<NumpyValue> parse_numpy_value(const Pickle& pickle, const PickleValue& object);

// Which text of the pickle an array's bytes stand in, and whether each character is one. Two that are equal are decoded
// to the same.
struct NumpyText {
  const char* at = nullptr;
  bool encoded = false;
  PickleRef other = 0;  // the value itself where it is no text
  auto operator<=>(const NumpyText&) const = default;
};
NumpyText numpy_text(const Pickle& pickle, const NumpyValue& value);

// The bytes of an array or scalar, little-endian; false where they are written in a way that is not read, or are more
// than `most`.
bool decode_numpy_bytes(const Pickle& pickle, const NumpyValue& value, std::size_t most, std::string& out);

}  // namespace nanhunt::checkpoint
