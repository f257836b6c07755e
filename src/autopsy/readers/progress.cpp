// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/progress.h"

#include <charconv>

#include "src/autopsy/readers/line_context.h"

namespace nanhunt::autopsy {
namespace {

// A whole number of at most nine digits at `at`, which is moved behind it.
std::optional<double> take_count(std::string_view line, std::size_t& at) {
  unsigned value = 0;
  const char* const begin = line.data() + at;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), value);
  const auto length = static_cast<std::size_t>(end - begin);
  if (error != std::errc() || length == 0 || length > 9) return std::nullopt;
  at += length;
  return value;
}

// Whether a word that names what is counted stands before `at`: "Epoch 3/10", "Epoch: [3/10]".
bool is_named(std::string_view line, std::size_t at) {
  while (at > 0 && std::string_view(" \t:=([").find(line[at - 1]) != std::string_view::npos) --at;
  const char c = at > 0 ? line[at - 1] : ' ';
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

std::optional<Progress> find_progress(std::string_view line) {
  std::optional<double> epoch;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (!is_digit(line[at])) continue;
    const std::size_t begin = at;
    const bool starts = begin == 0 || std::string_view(" \t[(|").find(line[begin - 1]) != std::string_view::npos;
    while (at + 1 < line.size() && is_digit(line[at + 1])) ++at;
    if (!starts) continue;
    std::size_t next = begin;
    const auto count = take_count(line, next);
    if (!count) continue;
    std::optional<double> of;
    if (line.substr(next).starts_with('/')) {
      ++next;
      while (next < line.size() && line[next] == ' ') ++next;
      of = take_count(line, next);
    }
    const std::string_view rest = line.substr(next);
    if (rest.starts_with("][")) {  // "[0][", "[0/5][": what stands before the batches
      epoch = count;
      at = next;
      continue;
    }
    if (!of || *of < *count || *of < 2) continue;
    at = next;
    const bool ends = rest.empty() || std::string_view(" \t]),|").find(rest.front()) != std::string_view::npos;
    if (!ends || rest.starts_with(" (") || is_named(line, begin)) continue;
    return Progress{*count, *of, epoch};
  }
  return std::nullopt;
}

}  // namespace nanhunt::autopsy
