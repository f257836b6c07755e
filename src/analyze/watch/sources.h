// SPDX-License-Identifier: Apache-2.0
// The program around the ops: its code at each call site and above it, and the classes of its modules.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

class Sources {
 public:
  explicit Sources(const Names& names) : names_(names) {}
  void on_frame(const FrameRecord& record);
  void on_setup(const SetupRecord& record);
  void fill(Finding& finding) const;

 private:
  static constexpr std::size_t kMaxSites = 16384, kMaxModules = 65536;
  static constexpr std::size_t kMaxFrames = 16;  // of one site
  const Names& names_;
  using Stack = std::vector<FrameRecord>;
  struct Site {
    std::vector<Stack> stacks;  // of its first call, then of ops at which badness began
  };
  static constexpr std::size_t kMaxStacks = 64;  // of one site
  static const Stack& stack_of(const Site& site, std::uint64_t seq);
  std::map<std::string, Site> sites_;
  std::map<std::string, StringId> classes_;  // by module path
};

}  // namespace nanhunt::analyze
