// SPDX-License-Identifier: Apache-2.0
// Messages of the Model Context Protocol over stdin and stdout: one JSON object a line.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace nanhunt::cli::mcp {

class LineChannel {
 public:
  LineChannel(int input, int output) : input_(input), output_(output) {}

  static constexpr std::string_view kTooLong = "too long";  // no JSON

  int input() const { return input_; }
  int output() const { return output_; }
  bool ended() const { return ended_ && lines_.empty(); }
  // Whether there may be more to read.
  bool is_open() const { return !ended_; }

  // Reads what is there, once; blocks where there is nothing.
  void read();
  // The next whole line; none: it has not come. One that is too long is dropped, and given as kTooLong.
  std::optional<std::string> next();
  bool has_line() const { return !lines_.empty(); }

  // false: nobody reads any more.
  bool write(std::string line);

 private:
  static constexpr std::size_t kMostBytes = 4u << 20;

  int input_, output_;
  bool ended_ = false, too_long_ = false;
  std::string read_;
  std::deque<std::string> lines_;
};

}  // namespace nanhunt::cli::mcp
