// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_values.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nanhunt/trace.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestExact = (1ull << 53) - 1;

}  // namespace

json json_number(double value) {
  if (std::isfinite(value)) return value;
  return format_number(value);
}

json json_number_or_null(double value) {
  if (std::isnan(value)) return nullptr;
  return json_number(value);
}

json json_count(std::uint64_t value) { return std::min(value, kLargestExact); }

json json_seq(std::uint64_t seq) {
  if (seq == kNoSeq || seq > kLargestExact) return nullptr;
  return seq;
}

json json_integer(std::int64_t value) {
  const auto limit = static_cast<std::int64_t>(kLargestExact);
  if (value > limit || value < -limit) return std::to_string(value);
  return value;
}

json json_integers(const std::vector<std::int64_t>& values, std::size_t limit) {
  json out = json::array();
  for (std::size_t i = 0; i < values.size() && i < limit; ++i) out.push_back(json_integer(values[i]));
  return out;
}

json json_text(std::string_view raw, std::size_t limit) {
  if (raw.size() <= limit) return std::string(raw);
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(raw[end]) & 0xC0u) == 0x80u) --end;
  return std::string(raw.substr(0, end)) + "…";
}

json json_text_or_null(std::string_view raw) {
  if (raw.empty()) return nullptr;
  return json_text(raw);
}

json json_texts(const std::vector<std::string>& texts, std::size_t limit) {
  json out = json::array();
  for (std::size_t i = 0; i < texts.size() && i < limit; ++i) out.push_back(json_text(texts[i]));
  return out;
}

std::string dump_json(const json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace nanhunt::reports
