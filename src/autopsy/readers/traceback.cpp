// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/traceback.h"

#include <charconv>
#include <string>
#include <utility>

#include "src/autopsy/readers/log_row.h"
#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::string_view kForwardOf = "Error detected in ";

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const bool left = at == 0 || !is_part(text[at - 1]);
    const std::size_t end = at + word.size();
    if (left && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

// A message that says that a number was bad.
bool speaks_of_bad_numbers(std::string_view exception, std::string_view message) {
  if (exception.ends_with("FloatingPointError")) return true;
  const std::string text = lower_case(message);
  for (const std::string_view word : {"nan", "nans", "inf", "infinite", "infinity", "nonfinite"}) {
    if (has_word(text, word)) return true;
  }
  // "found invalid values" is what torch.distributions says of NaN, with the tensor below.
  for (const std::string_view words : {"non-finite", "not finite", "found invalid values", "probability tensor contains"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

// A line of code that asks whether numbers are finite.
bool asks_of_bad_numbers(std::string_view code) {
  for (const std::string_view word : {"isnan", "isinf", "isfinite"}) {
    if (code.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// Lines with which training scripts end themselves, without an exception.
bool is_stop_message(std::string_view line) {
  const std::string text = lower_case(line);
  const bool loss = text.find("loss is nan") != std::string::npos || text.find("loss is inf") != std::string::npos ||
                    text.find("nan loss") != std::string::npos || text.find("non-finite loss") != std::string::npos;
  const bool ends = text.find("stopping") != std::string::npos || text.find("abort") != std::string::npos ||
                    text.find("terminat") != std::string::npos;
  return loss && ends;
}

bool is_own(std::string_view file) {
  return package_path(file) == 0 && file.find("/lib/python3") == std::string_view::npos && !file.starts_with("<frozen");
}

// "Function 'LogBackward0' returned nan values in its 0th output."
std::string backward_in(std::string_view message) {
  const std::size_t start = message.find("Function '");
  if (start == std::string_view::npos || message.find("returned nan values") == std::string_view::npos) return {};
  const std::string_view rest = message.substr(start + 10);
  return std::string(rest.substr(0, rest.find('\'')));
}

}  // namespace

bool TracebackLines::take_frame(std::string_view line) {
  const std::string_view text = trimmed(line);
  if (!text.starts_with("File \"")) return false;
  const std::size_t quote = text.find('"', 6), number = text.find(", line ");
  if (quote == std::string_view::npos || number == std::string_view::npos) return false;
  const std::string_view file = text.substr(6, quote - 6);
  if (!is_own(file)) return true;
  Traceback& into = open_ ? now_ : forward_;
  into.file = file;
  into.line = 0;
  const std::string_view rest = text.substr(number + 7);
  std::from_chars(rest.data(), rest.data() + rest.size(), into.line);
  const std::size_t in = rest.find(", in ");
  into.function = in == std::string_view::npos ? std::string() : std::string(rest.substr(in + 5));
  return true;
}

bool TracebackLines::take(std::string_view line) {
  // torchrun and others put "[rank0]: " before each line.
  if (line.starts_with("[rank")) {
    const std::size_t end = line.find("]: ");
    if (end != std::string_view::npos && end < 16) line.remove_prefix(end + 3);
  }
  const std::size_t detected = line.find(kForwardOf);
  if (detected != std::string_view::npos && line.find("Traceback of forward call") != std::string_view::npos) {
    forward_ = {};
    const std::string_view name = line.substr(detected + kForwardOf.size());
    forward_.backward = name.substr(0, name.find('.'));
    forward_open_ = true;
    return true;
  }
  // A progress bar may stand before it on the line.
  if (line.find("Traceback (most recent call last)") != std::string_view::npos) {
    now_ = {};
    code_.clear();
    open_ = true;
    forward_open_ = false;
    return true;
  }
  if (!open_ && !forward_open_) {
    if (!is_stop_message(line)) return false;
    Traceback one;
    one.message = trimmed(line);
    one.numeric = true;
    out_->add_traceback(std::move(one));
    return false;  // such a line may also hold the loss
  }
  if (take_frame(line)) return true;
  const bool indented = line.starts_with(" ") || line.starts_with("\t");
  if (line.empty() || indented) {
    if (const std::string_view code = trimmed(line); indented && code.find_first_not_of("^~ ") != std::string_view::npos) code_ = code;
    return true;
  }
  if (open_) {
    finish(line);
    return true;
  }
  forward_open_ = false;
  return false;
}

void TracebackLines::finish(std::string_view line) {
  open_ = false;
  const std::size_t colon = line.find(": ");
  now_.exception = trimmed(line.substr(0, colon));
  if (now_.exception.find(' ') != std::string::npos) {  // no exception's name: the traceback was cut off
    now_.exception.clear();
    now_.message = line;
  } else if (colon != std::string_view::npos) {
    now_.message = line.substr(colon + 2);
  }
  now_.numeric = speaks_of_bad_numbers(now_.exception, now_.message) ||
                 (now_.exception.ends_with("AssertionError") && asks_of_bad_numbers(code_));
  now_.backward = backward_in(now_.message);
  if (!now_.backward.empty() && now_.backward == forward_.backward && !forward_.file.empty()) {
    now_.file = forward_.file;  // the forward call says more than the line with backward()
    now_.line = forward_.line;
    now_.function = forward_.function;
  }
  out_->add_traceback(std::move(now_));
  now_ = {};
}

void TracebackLines::end() {
  if (open_) finish("");
}

}  // namespace nanhunt::autopsy
