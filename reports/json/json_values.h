// SPDX-License-Identifier: Apache-2.0
// JSON that every parser reads back: numbers that JSON has no word for become strings or null, integers
// stay exact in a double, foreign bytes become valid text. Used by report.json and by every `--json`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/event.h"

namespace nanhunt::reports {

// Finite numbers as they are, others as "NaN", "Infinity", "-Infinity".
nlohmann::json json_number(double value);
nlohmann::json json_number_or_null(double value);  // NaN, meaning not known, becomes null
// A count: what is beyond 2^53 - 1 stays there.
nlohmann::json json_count(std::uint64_t value);
// A sequence number: null for kNoSeq and for what a double cannot hold exactly.
nlohmann::json json_seq(std::uint64_t seq);
// Exact always: a number up to 2^53 - 1, beyond that a decimal string.
nlohmann::json json_integer(std::int64_t value);
// The first `limit` of them.
nlohmann::json json_integers(const std::vector<std::int64_t>& values, std::size_t limit = SIZE_MAX);
// At most `limit` bytes, cut at a character, then "…". Bytes that are not UTF-8 are replaced by dump_json.
nlohmann::json json_text(std::string_view raw, std::size_t limit = 4096);
nlohmann::json json_text_or_null(std::string_view raw);                                      // "" becomes null
nlohmann::json json_texts(const std::vector<std::string>& texts, std::size_t limit = 1024);  // the first `limit`

// Sorted keys, ASCII only (nothing in it can steer a terminal), never throws on foreign bytes.
// indent < 0: one line. No newline at the end.
std::string dump_json(const nlohmann::json& value, int indent = 2);

}  // namespace nanhunt::reports
