// SPDX-License-Identifier: Apache-2.0
// Loose JSON: JSON as training programs write it, with NaN and Infinity as words, and the dicts that Python prints
// ({'loss': nan}). Values are handed over flat, with their path; nothing is built from the text.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace nanhunt::autopsy {

struct LooseValue {
  enum class Kind { kNumber, kText, kWord };  // kWord: true, false, null and their like
  Kind kind = Kind::kWord;
  double number = 0;
  std::string_view text;  // as it stands in the file, without its quotes; escapes are not undone
};

// `path` has a dot before each key but the first; items of a list have their number as key.
using LooseVisitor = std::function<void(std::string_view path, const LooseValue& value)>;

struct LooseEnd {
  std::size_t length = 0;  // bytes read; where the mistake is, if there is one
  bool whole = false;      // one value was read to its end
};

// Reads one value at the start of `text`. At most 64 levels deep.
LooseEnd read_loose_json(std::string_view text, const LooseVisitor& visit);

// A number or one of the words nan, NaN, inf, Infinity, with a sign, and nothing else.
std::optional<double> parse_number(std::string_view text);
// A text value with its escapes undone.
std::string unescape(std::string_view text);

}  // namespace nanhunt::autopsy
