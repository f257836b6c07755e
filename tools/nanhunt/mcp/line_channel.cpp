// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/mcp/line_channel.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

namespace nanhunt::cli::mcp {

void LineChannel::read() {
  std::array<char, 1 << 16> bytes;
  const ssize_t count = ::read(input_, bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) {
    ended_ = true;
    return;
  }
  std::string_view rest(bytes.data(), static_cast<std::size_t>(count));
  for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
    if (!too_long_) read_ += rest.substr(0, end);
    lines_.push_back(too_long_ ? std::string(kTooLong) : std::exchange(read_, {}));
    too_long_ = false;
  }
  if (!too_long_) read_ += rest;
  if (read_.size() > kMostBytes) {
    read_.clear();
    too_long_ = true;
  }
}

std::optional<std::string> LineChannel::next() {
  if (lines_.empty()) return std::nullopt;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

bool LineChannel::write(std::string line) {
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t count = ::write(output_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace nanhunt::cli::mcp
