// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/watch/live_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "reports/views/numbers.h"
#include "src/core/text.h"

namespace nanhunt::cli {
namespace {

using fleet::LiveFault;
using fleet::LiveState;
using fleet::LiveStatus;

constexpr std::string_view kRed = "\x1b[31m", kGreen = "\x1b[32m", kYellow = "\x1b[33m", kPlain = "\x1b[0m";

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  bool escape = false;
  for (const char byte : text) {
    if (byte == '\x1b') escape = true;
    if (!escape && begins_character(byte)) ++columns;
    if (escape && byte == 'm') escape = false;
  }
  return columns;
}

// Without escape sequences.
std::string cut(std::string_view text, int width) {
  const auto most = static_cast<std::size_t>(std::max(width, 1));
  if (columns_of(text) <= most) return std::string(text);
  std::size_t columns = 0, end = 0;
  while (end < text.size() && (columns + 1 < most || !begins_character(text[end]))) {
    if (begins_character(text[end])) ++columns;
    ++end;
  }
  while (end < text.size() && !begins_character(text[end])) ++end;
  return std::string(text.substr(0, end)) + "…";
}

std::string number_text(double number) { return std::isfinite(number) ? fmt::format("{:.6g}", number) : format_number(number); }

std::string duration_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string state_text(const LiveStatus& status) {
  switch (status.state) {
    case LiveState::kNotBegun:
      return "not begun";
    case LiveState::kTraining:
      return "training";
    case LiveState::kEnded:
      return "ended";
    case LiveState::kQuiet:
      return fmt::format("nothing new for {}: it is slow, hangs, or was killed", duration_text(status.quiet_seconds));
  }
  return "";
}

std::string steps_text(const LiveStatus& status) {
  const auto& n = status.numbers;
  if (!n.highest_step) return "no step yet";
  if (*n.lowest_step == *n.highest_step) return fmt::format("step {}", *n.highest_step);
  return fmt::format("steps {} to {}", *n.lowest_step, *n.highest_step);
}

std::string counts_text(const LiveStatus& status) {
  const auto& n = status.numbers;
  const std::string clean = n.clean_through ? fmt::format("clean through step {}", *n.clean_through) : "no step is known to be clean";
  return fmt::format("{}; {}, {} skipped", clean, reports::plural(n.bad_steps, "bad step", "bad steps"), n.skipped_steps);
}

std::string ranks_text(const LiveStatus& status) {
  const auto& n = status.numbers;
  std::string text = fmt::format("{} of {} seen:", n.ranks, status.world_size);
  const auto add = [&](std::uint64_t count, const char* what) {
    if (count > 0) text += fmt::format("{} {} {}", text.ends_with(':') ? "" : ",", count, what);
  };
  add(n.training, "training");
  add(n.quiet, "quiet");
  add(n.ended, "ended");
  return text;
}

std::string place_text(const fleet::Place& place) {
  return place.dimension.empty() ? "other ranks" : printable(place.dimension + " " + place.value);
}

// Groups where not all is well, the worst first.
std::vector<std::string> group_lines(const LiveStatus& status) {
  std::vector<const fleet::LiveGroup*> bad;
  for (const fleet::LiveGroup& group : status.groups) {
    if (group.numbers.ranks < 2) continue;  // the faults name it
    if (group.numbers.bad_steps > 0 || (group.numbers.quiet > 0 && group.numbers.quiet < status.numbers.ranks)) bad.push_back(&group);
  }
  std::stable_sort(bad.begin(), bad.end(), [](const auto* a, const auto* b) { return a->numbers.bad_steps > b->numbers.bad_steps; });
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min<std::size_t>(bad.size(), 3); ++i) {
    const fleet::LiveNumbers& n = bad[i]->numbers;
    lines.push_back(fmt::format("  Group   {}: {}{}", place_text(bad[i]->place), reports::plural(n.bad_steps, "bad step", "bad steps"),
                                n.quiet > 0 ? fmt::format(", {} quiet", n.quiet) : ""));
  }
  return lines;
}

}  // namespace

std::string fault_line(const LiveFault& fault, std::uint64_t world_size) {
  std::string text = fault.title;
  if (!fault.call_site.empty()) text += " (" + fault.call_site + ")";
  text += fmt::format(", step {}", fault.step);
  if (world_size > 1) text += fmt::format(", rank {}", fault.rank);
  if (fault.ranks > 1) text += fmt::format(" and {} more", fault.ranks - 1);
  return printable(text);
}

std::vector<std::string> live_page(const LiveStatus& status, const PageOptions& options) {
  const bool fault = !status.faults.empty(), quiet = status.state == LiveState::kQuiet;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}  {}: {}{}", fault ? "FAULT" : quiet ? "QUIET" : "WATCH", printable(options.run), state_text(status),
                              status.state == LiveState::kNotBegun ? "" : ", " + steps_text(status)));
  if (status.state != LiveState::kNotBegun) {
    std::string numbers;
    const auto add = [&](const char* name, const std::optional<double>& number) {
      if (number) numbers += fmt::format("{}{} {}", numbers.empty() ? "" : "  ", name, number_text(*number));
    };
    add("loss", status.loss);
    add("gradient norm", status.gradient_norm);
    add("learning rate", status.lr);
    if (status.numbers.scale && (*status.numbers.scale != 1 || status.numbers.skipped_steps > 0)) add("scale", status.numbers.scale);
    if (status.seconds_per_step) numbers += "  " + duration_text(*status.seconds_per_step) + " a step";
    if (status.watching) numbers += fmt::format(", {:.0f} % of it watching", 100 * *status.watching);
    if (!numbers.empty()) lines.push_back("  Last    " + numbers + (status.world_size > 1 ? fmt::format(" (rank {})", *status.shown_rank) : ""));
    lines.push_back("  Steps   " + counts_text(status));
    if (status.world_size > 1) lines.push_back("  Ranks   " + ranks_text(status));
    for (std::string& line : group_lines(status)) lines.push_back(std::move(line));
    if (status.damaged > 0) lines.push_back(fmt::format("  Damage  {} could not be read in full", reports::plural(status.damaged, "rank", "ranks")));
    if (!status.headline.empty() && (!fault || status.world_size > 1)) lines.push_back("  " + std::string(fault ? "First   " : "So far  ") + printable(status.headline));
    constexpr std::size_t kMostFaults = 6;
    for (std::size_t i = 0; i < std::min(status.faults.size(), kMostFaults); ++i)
      lines.push_back("  Fault   " + fault_line(status.faults[i], status.world_size));
    if (status.faults.size() > kMostFaults) lines.push_back(fmt::format("  and {} kinds of fault more", status.faults.size() - kMostFaults));
  }
  const auto most = static_cast<std::size_t>(std::max(options.height - 1, 1));
  if (lines.size() > most) lines.resize(most);
  for (std::string& line : lines) line = cut(line, options.width);
  if (options.colour && lines.front().size() >= 5) {
    const std::string_view colour = fault ? kRed : quiet ? kYellow : kGreen;
    lines.front() = std::string(colour) + lines.front().substr(0, 5) + std::string(kPlain) + lines.front().substr(5);
  }
  return lines;
}

std::string live_line(const LiveStatus& status) {
  std::string text = state_text(status);
  if (status.state == LiveState::kNotBegun) return text;
  text += "  " + steps_text(status);
  if (status.loss) text += "  loss " + number_text(*status.loss);
  if (status.numbers.scale && *status.numbers.scale != 1) text += "  scale " + number_text(*status.numbers.scale);
  text += "  " + counts_text(status);
  if (status.world_size > 1) text += "; ranks " + ranks_text(status);
  return text;
}

std::string PageOnTerminal::draw(const std::vector<std::string>& lines, int width) {
  const auto columns = static_cast<std::size_t>(std::max(width, 1));
  std::size_t rows = 0;  // a line that was drawn wider is broken by the terminal
  for (const std::size_t shown : shown_) rows += std::max<std::size_t>(1, (shown + columns - 1) / columns);
  std::string out = "\r";
  if (rows > 0) out += fmt::format("\x1b[{}A", rows);
  shown_.clear();
  for (const std::string& line : lines) {
    out += line + "\x1b[K\n";
    shown_.push_back(columns_of(line));
  }
  return out + "\x1b[J";
}

}  // namespace nanhunt::cli
