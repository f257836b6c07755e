// SPDX-License-Identifier: Apache-2.0
// How views write numbers, places and foreign text. Independent of the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/counts.h"

namespace nanhunt::reports {

// Longest texts a view shows, in bytes after printable(); what is cut ends in "…".
inline constexpr std::size_t kNameLimit = 240;
inline constexpr std::size_t kSentenceLimit = 1000;
inline constexpr std::size_t kParagraphLimit = 4000;

// printable(), cut at a character boundary.
std::string clip(std::string_view raw, std::size_t limit);

using nanhunt::format_count;
using nanhunt::format_dims;
using nanhunt::format_signed_count;
std::string format_bytes(std::uint64_t n);                        // "1.2 MiB"
std::string format_short(double value, int digits = 6);           // significant digits; "NaN", "+Inf", "-Inf"
std::string format_percent(double share);                         // "0.29 %"; "0 %" and "100 %" mean none and all
std::string format_share(std::int64_t part, std::int64_t whole);  // "12 of 4,096 (0.29 %)"
std::string join(const std::vector<std::string>& parts, std::string_view between);
// "1 step", "2 steps"
std::string plural(std::uint64_t n, std::string_view one, std::string_view many);

}  // namespace nanhunt::reports
