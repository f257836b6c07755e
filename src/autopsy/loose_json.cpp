// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/loose_json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

#include "src/autopsy/log_bytes.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kDeepest = 64;
constexpr std::size_t kLongestPath = 1024;

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class LooseReader {
 public:
  LooseReader(std::string_view text, const LooseVisitor& visit) : text_(text), visit_(visit) {}

  LooseEnd read() {
    const bool whole = read_value(0);
    return {at_, whole};
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && is_json_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool read_value(std::size_t depth) {
    skip_space();
    if (depth > kDeepest || at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{':
        return read_items('}', depth);
      case '[':
        return read_items(']', depth);
      case '(':
        return read_items(')', depth);
      case '"':
      case '\'': {
        std::string_view text;
        if (!read_text(text)) return false;
        visit_(path_, {LooseValue::Kind::kText, 0, text});
        return true;
      }
      default:
        return read_word();
    }
  }

  bool read_items(char end, std::size_t depth) {
    ++at_;
    const std::size_t length = path_.size();
    for (std::uint64_t index = 0; !take(end); ++index) {
      if (index != 0 && !take(',')) return false;
      if (index != 0 && take(end)) break;  // Python's (1,)
      skip_space();
      if (end == '}') {
        std::string_view key;
        if ((peek() != '"' && peek() != '\'') || !read_text(key) || !take(':')) return false;
        push(key);
      } else {
        push(std::to_string(index));
      }
      if (!read_value(depth + 1)) return false;
      path_.resize(length);
    }
    return true;
  }

  void push(std::string_view key) {
    if (!path_.empty()) path_ += '.';
    path_ += key.substr(0, kLongestPath - std::min(kLongestPath, path_.size()));
  }

  bool read_text(std::string_view& out) {
    const char quote = text_[at_++];
    const std::size_t start = at_;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == quote) {
        out = text_.substr(start, at_ - start);
        ++at_;
        return true;
      }
    }
    at_ = std::min(at_, text_.size());
    return false;
  }

  bool read_word() {
    const std::size_t start = at_;
    while (at_ < text_.size() && !is_json_space(text_[at_]) &&
           std::string_view(",:]})([{'\"").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    const std::string_view word = text_.substr(start, at_ - start);
    if (word.empty()) return false;
    // "tensor(nan)" and "np.float64(nan)", as Python prints them.
    if (peek() == '(' && (word == "tensor" || word.starts_with("np.") || word.starts_with("numpy."))) {
      const std::size_t close = text_.find(')', at_);
      if (close == std::string_view::npos || close - at_ > 200) return false;
      std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
      inside = inside.substr(0, inside.find(','));
      at_ = close + 1;
      if (const auto number = parse_number(inside)) visit_(path_, {LooseValue::Kind::kNumber, *number, inside});
      return true;
    }
    if (const auto number = parse_number(word)) {
      visit_(path_, {LooseValue::Kind::kNumber, *number, word});
      return true;
    }
    static constexpr std::string_view kWords[] = {"true", "false", "null", "True", "False", "None"};
    if (std::find(std::begin(kWords), std::end(kWords), word) == std::end(kWords)) {
      at_ = start;
      return false;
    }
    visit_(path_, {LooseValue::Kind::kWord, 0, word});
    return true;
  }

  std::string_view text_;
  const LooseVisitor& visit_;
  std::size_t at_ = 0;
  std::string path_;
};

}  // namespace

LooseEnd read_loose_json(std::string_view text, const LooseVisitor& visit) { return LooseReader(text, visit).read(); }

std::optional<double> parse_number(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  if (text.empty() || text.size() > 64) return std::nullopt;
  const bool minus = text.front() == '-';
  std::string_view digits = text;
  if (minus || digits.front() == '+') digits.remove_prefix(1);
  if (digits.empty()) return std::nullopt;
  std::string lower = lower_case(digits);
  // What Microsoft's library writes: "1.#QNAN", "-1.#IND", "nan(ind)", "1.#INF".
  if (lower.starts_with("1.#inf")) lower = "inf";
  if (lower.starts_with("1.#") || lower.starts_with("nan(")) lower = "nan";
  if (lower.ends_with(".0")) lower.resize(lower.size() - 2);  // Lightning's bars write "nan.0"
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (lower == "inf" || lower == "infinity") return minus ? -kInfinity : kInfinity;
  if ((digits.front() < '0' || digits.front() > '9') && digits.front() != '.') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {  // 1e999 is as large as can be, 1e-999 as small
    const std::size_t e = lower.find('e');
    value = e != std::string::npos && lower.compare(e, 2, "e-") == 0 ? 0.0 : kInfinity;
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  return minus ? -value : value;
}

std::string unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    std::uint32_t code = 0;
    if (c == 'u' && i + 4 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16).ptr == text.data() + i + 5) {
      append_utf8(out, code);
      i += 4;
    } else {
      out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
    }
  }
  return out;
}

}  // namespace nanhunt::autopsy
