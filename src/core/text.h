// SPDX-License-Identifier: Apache-2.0
// Numbers and foreign text on their way to a terminal, a report or JSON.
#pragma once

#include <string>
#include <string_view>

namespace nanhunt {

// The shortest text that reads back as the same double: "65504", "1e-08", "-0". Non-finite numbers are
// "NaN", "Infinity" and "-Infinity". Does not depend on the locale.
std::string format_number(double value);

// `text` as valid UTF-8 without anything that could steer a terminal or reorder a line: control characters
// and bytes that are not UTF-8 become \xNN, C1 controls, bidirectional controls, line separators and
// invisible characters become \u{...}. Everything else is kept as it is.
std::string printable(std::string_view text);

// `word` as a shell reads it back: in quotes where it must be.
std::string shell_word(std::string_view word);

// Where the name of a file within its package begins: past "site-packages/", say; 0: no installed package's.
std::size_t package_path(std::string_view file);

}  // namespace nanhunt
