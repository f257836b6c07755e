// SPDX-License-Identifier: Apache-2.0
// The program's code at a call site and above it, told once for each site: a report has it though the files are gone.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include "hooks/torch/tap/recording.h"

namespace nanhunt::tap {

// One function of the program's that runs.
struct SourceFrame {
  std::string file, function, code;
  std::uint32_t line = 0, first_line = 0;
};

class Sources {
 public:
  static constexpr std::size_t kMaxFrames = 8, kMaxSites = 4096;

  explicit Sources(const Recording& to) : to_(to) {}

  // Python's lock is held. True: it is told of now, and never again.
  bool claim(const std::string& site) {
    return to_.frame != nullptr && reported_.size() < kMaxSites && reported_.insert(site).second;
  }
  // The same: its files are asked for.
  void read(SourceFrame& frame) const {
    if (to_.source == nullptr) return;
    char text[kMaxCode] = "";
    frame.first_line = to_.source(frame.file.c_str(), frame.line, text, sizeof text);
    text[sizeof text - 1] = 0;
    frame.code = text;
  }
  // The tap's mutex is held: this goes to the recorder.
  void report(const std::string& site, const std::vector<SourceFrame>& frames) const {
    std::uint32_t depth = 0;
    for (const SourceFrame& one : frames) {
      nanhunt_frame frame{};
      frame.struct_size = sizeof frame;
      frame.depth = depth++;
      frame.site = site.c_str();
      frame.file = one.file.c_str();
      frame.function = one.function.c_str();
      frame.code = one.code.c_str();
      frame.line = one.line;
      frame.first_line = one.first_line;
      if (to_.frame(to_.self, &frame) != NANHUNT_OK) return;
    }
  }

 private:
  static constexpr std::size_t kMaxCode = 4096;
  const Recording& to_;
  std::unordered_set<std::string> reported_;
};

}  // namespace nanhunt::tap
