// SPDX-License-Identifier: Apache-2.0
#include "reports/views/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

std::string with_precision(double value, std::chars_format format, int precision) {
  char buffer[400];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, format, precision);
  return result.ec == std::errc() ? std::string(buffer, result.ptr) : format_number(value);
}

// Exact powers of two are written as such where digits would hide that they are: "2^-24".
std::string power_of_two(double value) {
  constexpr int kBelow = -14, kFrom = 20;
  int exponent = 0;
  if (std::frexp(std::abs(value), &exponent) != 0.5) return "";
  --exponent;
  if (exponent > kBelow && exponent < kFrom) return "";
  return (value < 0 ? "-2^" : "2^") + std::to_string(exponent);
}

}  // namespace

std::string clip(std::string_view raw, std::size_t limit) {
  // printable() never shortens, so what is far past the limit need not be looked at.
  const bool cut_early = raw.size() > 4 * limit;
  std::string text = printable(cut_early ? raw.substr(0, 4 * limit) : raw);
  if (text.size() <= limit && !cut_early) return text;
  if (text.size() > limit) {
    std::size_t end = limit;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
    text.resize(end);
  }
  return text + "…";
}

std::string format_bytes(std::uint64_t n) {
  if (n < 1024) return format_count(n) + (n == 1 ? " byte" : " bytes");
  static constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double size = static_cast<double>(n) / 1024;
  std::size_t unit = 0;
  while (size >= 1024 && unit + 1 < std::size(kUnits)) {
    size /= 1024;
    ++unit;
  }
  return with_precision(size, std::chars_format::fixed, size < 10 ? 1 : 0) + " " + std::string(kUnits[unit]);
}

std::string format_short(double value, int digits_kept) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::string power = power_of_two(value); !power.empty()) return power;
  std::string text = with_precision(value, std::chars_format::general, digits_kept);
  // 1.0000001 is not 1: acos knows the difference.
  if (std::abs(value) < 10 && value != std::floor(value) && text.find_first_of(".e") == text.npos)
    text = with_precision(value, std::chars_format::general, 9);
  // 5.96046e-08 is written 5.96046e-8, and 1e+20 as 1e20.
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  std::size_t digits = e + 1;
  if (text[digits] == '+') text.erase(digits, 1);
  if (text[digits] == '-') ++digits;
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  return text;
}

std::string format_percent(double share) {
  const double percent = 100 * share;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  const int decimals = percent >= 10 || percent == 0 ? 0 : percent >= 1 ? 1 : 2;
  const std::string figure = with_precision(percent, std::chars_format::fixed, decimals);
  return (share < 1 && figure == "100" ? "> 99" : figure) + " %";
}

std::string format_share(std::int64_t part, std::int64_t whole) {
  const std::string text = format_signed_count(part) + " of " + format_signed_count(whole);
  if (whole <= 0 || part < 0 || part > whole) return text;
  return text + " (" + format_percent(static_cast<double>(part) / static_cast<double>(whole)) + ")";
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) text += between;
    text += parts[i];
  }
  return text;
}

std::string plural(std::uint64_t n, std::string_view one, std::string_view many) {
  return format_count(n) + " " + std::string(n == 1 ? one : many);
}

}  // namespace nanhunt::reports
