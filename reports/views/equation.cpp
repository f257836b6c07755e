// SPDX-License-Identifier: Apache-2.0
#include "reports/views/equation.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "reports/views/numbers.h"
#include "reports/views/statement.h"
#include "src/core/ops/op_info.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kOperandsTold = 4;
constexpr std::size_t kLongestLine = 400, kLongestSide = 60;

// The sign with which a line of Python writes an op of two operands; empty: it has none.
std::string_view sign_of(std::string_view op) {
  const OpInfo& info = op_info(op);
  if (!info.has(kElementwise) || !info.forward.empty() || op.find("_backward") != op.npos) return "";
  switch (info.bound) {
    case Bound::kQuotient:
      return "/";
    case Bound::kProduct:
      return "*";
    case Bound::kPower:
      return "**";
    case Bound::kSum:
      return info.has(kSubtracts) ? "-" : table_name(op) == "add" ? "+" : "";
    default:
      return "";
  }
}

// What a line divides a number by: 1 over it, times the number.
bool is_reciprocal(std::string_view op) { return table_name(op) == "reciprocal"; }

// A negative number on the right stands in brackets.
std::string beside(const std::string& number) { return number.front() == '-' ? "(" + number + ")" : number; }

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & '\x80') != 0;
}

// Whether what stands before `at` is an operand: a sign there joins two.
bool joins(std::string_view text, std::size_t at) {
  std::size_t i = at;
  while (i > 0 && text[i - 1] == ' ') --i;
  if (i == 0) return false;
  const char before = text[i - 1];
  if (before == ')' || before == ']' || before == '}') return true;
  if (!is_word(before)) return before == '.' && i > 1 && text[i - 2] >= '0' && text[i - 2] <= '9';
  std::size_t begin = i;
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  const std::string_view word = text.substr(begin, i - begin);
  for (const std::string_view keyword : {"return", "yield", "in", "not", "and", "or", "if", "else", "is", "lambda", "assert"}) {
    if (word == keyword) return false;
  }
  // The exponent of a number: 1e-8.
  const bool number = word.front() >= '0' && word.front() <= '9';
  return !(number && i == at && (before == 'e' || before == 'E') && word.find('x') == word.npos);
}

// Where the sign joins two operands of the line; npos: nowhere, or more than once.
std::size_t only_place(std::string_view text, std::string_view sign) {
  std::size_t found = text.npos;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != sign.front()) continue;
    std::size_t end = i;
    while (end < text.size() && text[end] == sign.front()) ++end;
    const std::size_t length = end - i;
    const bool arrow = sign == "-" && end < text.size() && text[end] == '>';
    if (length == sign.size() && !arrow && joins(text, i)) {
      if (found != text.npos) return text.npos;
      found = i;
    }
    i = end - 1;
  }
  return found;
}

enum class Binds { kPower, kProduct, kSum };

bool is_product(char c) { return c == '/' || c == '*' || c == '@'; }

// The operand that ends before `at`: back over names, brackets and what binds no weaker than the sign.
std::size_t begin_of_left(std::string_view text, std::size_t at, Binds binds) {
  std::size_t i = at, begin = at;
  int depth = 0;
  while (i > 0) {
    const char c = text[i - 1];
    if (closes(c)) {
      ++depth;
    } else if (opens(c)) {
      if (depth == 0) break;
      --depth;
    } else if (depth == 0 && c == ' ') {
      // One word after another is no expression: "return x".
      std::size_t before = i - 1;
      while (before > 0 && text[before - 1] == ' ') --before;
      const bool operand_after = begin < text.size() && (is_word(text[begin]) || opens(text[begin]));
      if (operand_after && before > 0 && is_word(text[before - 1])) break;
    } else if (depth == 0 && !is_word(c) && c != '.') {
      const bool sum = c == '+' || (c == '-' && joins(text, i - 1));
      if (!(binds != Binds::kPower && is_product(c)) && !(binds == Binds::kSum && sum)) {
        // A minus of its own belongs to the operand.
        if (binds != Binds::kPower && c == '-' && !joins(text, i - 1)) begin = i - 1;
        break;
      }
    }
    --i;
    if (c != ' ') begin = i;
  }
  return begin;
}

// The operand that begins at `at`, after the sign: a name with its brackets, and what binds tighter than the sign.
std::size_t end_of_right(std::string_view text, std::size_t at, Binds binds) {
  std::size_t i = text.find_first_not_of(' ', at);
  if (i == text.npos) return text.npos;
  if (text[i] == '-' || text[i] == '~') ++i;
  std::size_t end = i;
  int depth = 0;
  bool after_sign = true;  // an operand is awaited
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ' && depth == 0) continue;
    const bool inside = depth != 0;
    if (opens(c)) {
      ++depth;
    } else if (closes(c)) {
      if (depth == 0) break;
      --depth;
    } else if (!inside && !is_word(c) && c != '.') {
      const bool power = c == '*' && i + 1 < text.size() && text[i + 1] == '*';
      if (binds != Binds::kSum && !power) break;
      if (binds == Binds::kSum && !is_product(c)) break;
      if (power) ++i;
      after_sign = true;
      continue;
    } else if (!inside && !after_sign && i != end) {
      break;  // a word after a word: "n if"
    }
    after_sign = false;
    end = i + 1;
  }
  return depth == 0 && !after_sign ? end : text.npos;
}

// Functions of PyTorch's that are no op, with the signs of the ops that they compute with; "^" for "**".
struct Composed {
  std::string_view name, signs;
};
constexpr Composed kComposedFunctions[] = {
    {"backward", "+-*/^"},
    {"cdf", "+-*/^"},
    {"clip_grad_norm", "*/+"},
    {"corrcoef", "-*/"},
    {"cov", "-*/"},
    {"entropy", "+-*/^"},
    {"float_power", "^"},
    {"gumbel_softmax", "/+-"},
    {"icdf", "+-*/^"},
    {"kl_divergence", "+-*/^"},
    {"log_prob", "+-*/^"},
    {"normalize", "/"},
    {"rsample", "+-*/^"},
    {"square", "^"},
    {"step", "+-*/^"},
};

// Whether a function that is called there may make the op that has this sign.
bool called_in(std::string_view text, std::string_view sign) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    while (i < text.size() && is_word(text[i])) ++i;
    if (i == begin) {
      ++i;
      continue;
    }
    if (i == text.size() || text[i] != '(') continue;
    const std::string_view name = table_name(text.substr(begin, i - begin));
    const bool of_python = begin == 0 || text[begin - 1] != '.';
    const bool itself = sign_of(name) == sign || (sign == "/" && is_reciprocal(name));
    if (itself || op_info(name).has(kComposed) || (sign == "+" && of_python && name == "sum")) return true;
    const auto* row = std::ranges::find(kComposedFunctions, name, &Composed::name);
    if (row != std::end(kComposedFunctions) && row->signs.find(sign == "**" ? '^' : sign.front()) != sign.npos)
      return true;
  }
  return false;
}

// PyTorch divides a number by a tensor as the tensor's reciprocal times the number. It is not known which names are
// numbers, so that a quotient may hold a product, unless what it divides is the product at `product`.
bool quotient_multiplies(std::string_view text, std::size_t product) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '/') continue;
    const bool whole = i + 1 < text.size() && text[i + 1] == '/';
    if (!whole && joins(text, i) && !(i > product && begin_of_left(text, i, Binds::kProduct) <= product)) return true;
    if (whole) ++i;
  }
  return false;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

struct Sides {
  std::string_view sign;
  std::string left, right;
  bool brackets = false;  // the right side needs them
};

// The two sides of the only place of a statement that may be the op; nullopt: it does not say.
std::optional<Sides> sides_in_line(std::string_view op, std::string_view line, std::span<const std::string> below) {
  const std::string_view sign = is_reciprocal(op) ? "/" : sign_of(op);
  if (sign.empty() || line.size() > kLongestLine) return std::nullopt;
  const std::optional<Statement> statement = statement_from(line, below, kLongestLine);
  if (!statement) return std::nullopt;
  const std::string_view text = statement->plain, raw = statement->raw;
  const std::size_t at = only_place(text, sign);
  if (at == text.npos || called_in(text, sign)) return std::nullopt;
  if (sign == "*" && quotient_multiplies(text, at)) return std::nullopt;
  const Binds binds = sign == "**"                         ? Binds::kPower
                      : sign == "+" || sign == "-" ? Binds::kSum
                                                               : Binds::kProduct;
  std::size_t after = at + sign.size(), end = 0;
  if (after < text.size() && text[after] == '=') {  // "x /= n": all that follows
    ++after;
    end = text.size();
  } else {
    end = end_of_right(text, after, binds);
  }
  if (end == text.npos) return std::nullopt;
  const std::size_t begin = begin_of_left(text, at, binds);
  // An operation has the line where it begins, wherever its sign stands.
  if (begin >= statement->first_line) return std::nullopt;
  const std::string_view left = trimmed(raw.substr(begin, at - begin)), right = trimmed(raw.substr(after, end - after));
  if (left.empty() || right.empty() || left.size() > kLongestSide || right.size() > kLongestSide) return std::nullopt;
  const bool brackets = end == text.size() && after != at + sign.size() && right.find(' ') != right.npos;
  return Sides{sign, std::string(left), std::string(right), brackets};
}

}  // namespace

std::string equation_of(std::string_view op, const ElementEvidence& element) {
  if (element.operands.empty()) return "";
  const std::string result = format_short(element.value);
  const std::string_view sign = sign_of(op);
  const auto both = [&](std::string_view between) {
    return format_short(element.operands[0].value) + " " + std::string(between) + " " +
           beside(format_short(element.operands[1].value));
  };
  if (!sign.empty() && element.operands.size() == 2) return both(sign) + " = " + result;
  const OpInfo& info = op_info(op);
  // What is added to self: a number times this. So the quotient is not the result.
  if (info.update == UpdateRule::kQuotient && element.operands.size() == 2 && element.operands[0].slot == "tensor1" &&
      element.operands[1].slot == "tensor2")
    return both("/") + " is added: " + result;
  const bool function =
      sign.empty() && info.has(kElementwise) && info.forward.empty() && op.find("_backward") == op.npos;
  if (is_reciprocal(op) && element.operands.size() == 1)
    return "1 / " + beside(format_short(element.operands[0].value)) + " = " + result;
  if (function && element.operands.size() == 1 && element.operands[0].slot != "other")
    return std::string(table_name(op)) + "(" + format_short(element.operands[0].value) + ") = " + result;
  std::vector<std::string> parts;
  for (const ElementEvidence::OperandValue& operand : element.operands) {
    if (parts.size() == kOperandsTold) return "";
    const std::string called = operand.name.empty() ? part_of_quotient(op, operand.slot, operand.slot) : operand.name;
    parts.push_back((called.empty() ? "" : clip(called, kNameLimit) + " = ") + format_short(operand.value));
  }
  return join(parts, ", ") + ": " + result;
}

std::string part_of_quotient(std::string_view op, std::string_view slot, std::string otherwise) {
  if (sign_of(op) != "/") return otherwise;
  return slot == "self" ? "numerator" : slot == "other" ? "denominator" : otherwise;
}

std::string operation_in_line(std::string_view op, std::string_view line, std::span<const std::string> below) {
  const std::optional<Sides> sides = sides_in_line(op, line, below);
  if (!sides) return "";
  return printable(sides->left + " " + std::string(sides->sign) + " " +
                   (sides->brackets ? "(" + sides->right + ")" : sides->right));
}

std::string divisor_in_line(std::string_view op, std::string_view line, std::span<const std::string> below) {
  const std::optional<Sides> sides = is_reciprocal(op) ? sides_in_line(op, line, below) : std::nullopt;
  if (!sides) return "";
  const std::string& right = sides->right;
  // Brackets around all of it say nothing.
  const bool whole = right.front() == '(' && right.find_first_of("()", 1) == right.size() - 1;
  return printable(whole ? right.substr(1, right.size() - 2) : right);
}

}  // namespace nanhunt::reports
