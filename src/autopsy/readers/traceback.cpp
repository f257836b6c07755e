// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/traceback.h"

#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "src/autopsy/log_bytes.h"
#include "src/autopsy/readers/line_context.h"
#include "src/autopsy/readers/log_row.h"
#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::string_view kForwardOf = "Error detected in ", kTraceback = "Traceback (most recent call last)";
constexpr std::size_t kLongestMessage = 16384;  // of what is searched for bad numbers

// A message that says that a number was bad.
bool speaks_of_bad_numbers(std::string_view exception, std::string_view message) {
  if (exception.ends_with("FloatingPointError")) return true;
  // What is missing may be called NaN.
  for (const std::string_view name :
       {"NotFoundError", "KeyError", "AttributeError", "ImportError", "NameError", "SyntaxError", "ScannerError",
        "ParserError", "PermissionError", "DirectoryError", "OutOfMemoryError", "TypeError", "KeyboardInterrupt"}) {
    if (exception.ends_with(name)) return false;
  }
  const std::string text = lower_case(message);
  for (const std::string_view word : {"nan", "nans", "inf", "infinite", "infinity", "nonfinite"}) {
    if (has_word(text, word)) return true;
  }
  for (const std::string_view words : {"non-finite", "not finite", "probability tensor contains"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  // torch.distributions says this of NaN and of finite numbers that are out of range. The tensor below it decides,
  // where it is there as a whole.
  const std::size_t invalid = text.find("found invalid values");
  if (invalid == std::string::npos) return false;
  const std::size_t tensor = text.find("tensor(", invalid);
  return tensor == std::string::npos || text.find("...", tensor) != std::string::npos;
}

// A line of code that asks whether numbers are finite.
bool asks_of_bad_numbers(std::string_view code) {
  for (const std::string_view word : {"isnan", "isinf", "isfinite"}) {
    if (code.find(word) != std::string_view::npos) return true;
  }
  return false;
}

bool says_that_scale_is_exhausted(std::string_view text) {
  // DeepSpeed; fairseq.
  return text.find("loss scale already at minimum") != std::string_view::npos ||
         text.find("inimum loss scale reached") != std::string_view::npos;
}

// What a line says with which training scripts end themselves, without an exception.
Ended stop_message(std::string_view line) {
  if (says_that_scale_is_exhausted(line)) return Ended::kByScaleExhausted;
  if (!states_bad_number(line)) return Ended::kOtherwise;
  const std::string text = lower_case(line);
  const bool ends = text.find("stopping") != std::string::npos || text.find("abort") != std::string::npos ||
                    text.find("terminat") != std::string::npos;
  return ends ? Ended::kByBadNumber : Ended::kOtherwise;
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

// The line of a box that rich draws, without its sides; nothing for a line of no box.
std::optional<std::string_view> boxed(std::string_view line) {
  static constexpr std::string_view kSides[] = {"│", "┃", "|"};
  for (const std::string_view side : kSides) {
    if (!line.starts_with(side)) continue;
    line.remove_prefix(side.size());
    line = trimmed(line);
    if (line.ends_with(side)) line.remove_suffix(side.size());
    return trimmed(line);
  }
  return std::nullopt;
}

// Corners and edges of a box.
bool is_edge(std::string_view line) {
  for (const std::string_view corner : {"╭", "╰", "┏", "┗", "+-"}) {
    if (line.starts_with(corner)) return true;
  }
  return false;
}

// "/code/train.py:12 in main", as rich names a frame.
bool split_boxed_frame(std::string_view text, std::string_view& file, std::string_view& line,
                       std::string_view& function) {
  const std::size_t in = text.find(" in ");
  if (in == std::string_view::npos) return false;
  const std::size_t colon = text.rfind(':', in);
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == in) return false;
  file = text.substr(0, colon);
  line = text.substr(colon + 1, in - colon - 1);
  function = text.substr(in + 4);
  return line.find_first_not_of("0123456789") == std::string_view::npos && file.find(' ') == std::string_view::npos;
}

}  // namespace

bool TracebackLines::take_frame(std::string_view text) {
  std::string_view file, line, function;
  if (text.starts_with("File \"")) {
    const std::size_t quote = text.find('"', 6), number = text.find(", line ");
    if (quote == std::string_view::npos || number == std::string_view::npos) return false;
    file = text.substr(6, quote - 6);
    line = text.substr(number + 7);
    if (const std::size_t in = line.find(", in "); in != std::string_view::npos) function = line.substr(in + 5);
  } else if (!split_boxed_frame(text, file, line, function)) {
    return false;
  }
  if (!is_own(file)) return true;
  Traceback& into = within_ == Within::kFrames ? now_ : forward_;
  into.file = file;
  into.line = 0;
  into.function = function;
  std::from_chars(line.data(), line.data() + line.size(), into.line);
  return true;
}

void TracebackLines::take_code(std::string_view line) {
  if (line.starts_with("❱")) line = trimmed(line.substr(std::string_view("❱").size()));
  if (line.find_first_not_of("^~ ") != std::string_view::npos) code_ = line;
}

bool TracebackLines::begins(std::string_view line) {
  const std::size_t detected = line.find(kForwardOf);
  if (detected != std::string_view::npos && line.find("Traceback of forward call") != std::string_view::npos) {
    end_message();
    forward_ = {};
    const std::string_view name = line.substr(detected + kForwardOf.size());
    forward_.backward = name.substr(0, name.find('.'));
    within_ = Within::kForwardCall;
    return true;
  }
  const std::size_t at = line.find(kTraceback);
  if (at == std::string_view::npos) return false;
  end_message();
  now_ = {};
  code_.clear();
  prefix_ = is_edge(line) ? std::string_view() : line.substr(0, at);  // or a progress bar, which no other line has
  within_ = Within::kFrames;
  return true;
}

bool TracebackLines::take(std::string_view line) {
  if (begins(line)) return true;
  // Ray and others put the process before each line.
  if (!prefix_.empty() && line.starts_with(prefix_)) line.remove_prefix(prefix_.size());
  const bool indented = line.starts_with(" ") || line.starts_with("\t");
  switch (within_) {
    case Within::kNothing:
      if (const Ended ended = stop_message(line); ended != Ended::kOtherwise) {
        Traceback one;
        one.message = trimmed(line);
        one.ended = ended;
        out_->add_traceback(std::move(one));
      }
      return false;  // such a line may also hold the loss
    case Within::kMessage:
      if (line.empty() || message_.size() > kLongestMessage) {
        end_message();
      } else {
        message_.append("\n").append(line);
      }
      return false;  // nor is it sure where a message ends
    case Within::kFrames:
    case Within::kForwardCall:
      if (is_edge(line)) return true;
      if (const auto inside = boxed(line)) {
        if (!take_frame(*inside) && inside->starts_with("❱")) take_code(*inside);
        return true;
      }
      if (take_frame(trimmed(line))) return true;
      if (indented) take_code(trimmed(line));
      if (line.empty() || indented) return true;
      if (within_ == Within::kFrames) {
        finish(line);
        return true;
      }
      within_ = Within::kNothing;
      return false;
  }
  return false;
}

void TracebackLines::finish(std::string_view line) {
  const std::size_t colon = line.find(": ");
  now_.exception = trimmed(line.substr(0, colon));
  if (now_.exception.ends_with(':')) now_.exception.pop_back();  // its message begins on the next line
  if (now_.exception.find(' ') != std::string::npos) {  // no exception's name: the traceback was cut off
    now_.exception.clear();
    now_.message = line;
  } else if (colon != std::string_view::npos) {
    now_.message = line.substr(colon + 2);
  }
  message_ = now_.message;
  now_.backward = backward_in(now_.message);
  if (!now_.backward.empty() && now_.backward == forward_.backward && !forward_.file.empty()) {
    now_.file = forward_.file;  // the forward call says more than the line with backward()
    now_.line = forward_.line;
    now_.function = forward_.function;
  }
  within_ = Within::kMessage;
}

void TracebackLines::end_message() {
  if (within_ == Within::kFrames) finish("");
  if (within_ != Within::kMessage) return;
  within_ = Within::kNothing;
  if (now_.message.empty()) now_.message = trimmed(message_);
  if (says_that_scale_is_exhausted(message_)) {
    now_.ended = Ended::kByScaleExhausted;
  } else if (speaks_of_bad_numbers(now_.exception, message_) ||
             (now_.exception.ends_with("AssertionError") && asks_of_bad_numbers(code_))) {
    now_.ended = Ended::kByBadNumber;
  }
  out_->add_traceback(std::move(now_));
  now_ = {};
  message_.clear();
}

void TracebackLines::end() { end_message(); }

}  // namespace nanhunt::autopsy
