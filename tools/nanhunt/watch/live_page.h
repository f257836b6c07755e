// SPDX-License-Identifier: Apache-2.0
// What `watch` shows people: a page that is drawn over and over in one place, or a line each time.
#pragma once

#include <string>
#include <vector>

#include "src/fleet/live_status.h"

namespace nanhunt::cli {

struct PageOptions {
  std::string run;
  int width = 100, height = 24;
  bool colour = false;
};

// Lines of at most `width` columns, fewer than `height`.
std::vector<std::string> live_page(const fleet::LiveStatus& status, const PageOptions& options);
// The same in one line, without a newline: for what is no terminal.
std::string live_line(const fleet::LiveStatus& status);
std::string fault_line(const fleet::LiveFault& fault, std::uint64_t world_size);

// Draws pages over each other on a terminal.
class PageOnTerminal {
 public:
  // What to write to have `lines` where the last page is.
  std::string draw(const std::vector<std::string>& lines, int width);

 private:
  std::vector<std::size_t> shown_;  // columns of each line that stands there
};

}  // namespace nanhunt::cli
