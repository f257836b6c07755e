// SPDX-License-Identifier: Apache-2.0
#include "src/core/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace nanhunt {
namespace {

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  // bytes used, 0: not valid UTF-8 here
};

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  std::size_t length = 0;
  char32_t value = 0;
  char32_t smallest = 0;
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, value = lead & 0x1Fu, smallest = 0x80;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, value = lead & 0x0Fu, smallest = 0x800;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, value = lead & 0x07u, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < length) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return {};
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  if (value < smallest || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {value, length};
}

bool is_harmful(char32_t c) {
  return (c >= 0x80 && c <= 0x9F)         // C1 controls: some terminals obey them
         || c == 0xAD || c == 0x61C       // soft hyphen, Arabic letter mark
         || (c >= 0x200B && c <= 0x200F)  // zero width, left-to-right and right-to-left marks
         || (c >= 0x2028 && c <= 0x202E)  // line and paragraph separators, embeddings and overrides
         || (c >= 0x2060 && c <= 0x206F)  // word joiner, isolates
         || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

void append_hex(std::string& out, std::uint32_t value, int digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kDigits[(value >> shift) & 0xF];
}

}  // namespace

std::string format_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (c.length == 0 || c.value < 0x20 || c.value == 0x7F) {
      out += "\\x";
      append_hex(out, static_cast<unsigned char>(text[0]), 2);
      text.remove_prefix(1);
      continue;
    }
    if (is_harmful(c.value)) {
      out += "\\u{";
      append_hex(out, c.value, c.value > 0xFFFF ? 5 : c.value > 0xFF ? 4 : 2);
      out += '}';
    } else {
      out += text.substr(0, c.length);
    }
    text.remove_prefix(c.length);
  }
  return out;
}

std::string shell_word(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::size_t package_path(std::string_view file) {
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    if (const std::size_t at = file.rfind(folder); at != file.npos) return at + folder.size();
  }
  // Python's own: "/usr/lib/python3.11/contextlib.py".
  constexpr std::string_view kPython = "/lib/python";
  const std::size_t at = file.find(kPython);
  if (at == file.npos) return 0;
  const std::size_t end = file.find_first_not_of("0123456789.", at + kPython.size());
  return end != file.npos && end != at + kPython.size() && file[end] == '/' ? end + 1 : 0;
}

}  // namespace nanhunt
