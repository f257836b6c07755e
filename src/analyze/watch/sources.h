// SPDX-License-Identifier: Apache-2.0
// The program around the ops: its code at each call site and above it, and the classes of its modules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

class Sources {
 public:
  explicit Sources(const Names& names) : names_(names) {}
  void on_frame(const FrameRecord& record);
  void on_setup(const SetupRecord& record);
  void on_step_end(const StepRecord& step);
  void fill(Finding& finding) const;

 private:
  void add_frames(Finding& finding) const;
  void find_module(Finding& finding) const;

  static constexpr std::size_t kMaxSites = 16384, kMaxModules = 65536;
  static constexpr std::size_t kMaxFrames = 16;  // of one site
  const Names& names_;
  struct Stack {
    std::optional<std::uint32_t> step;  // in which it was told, once that one has ended
    std::vector<FrameRecord> frames;
  };
  struct Site {
    std::vector<Stack> stacks;  // of its first call, then of ops at which badness began
  };
  static constexpr std::size_t kMaxStacks = 64;  // of one site
  std::string callers_of(const Site& site, std::size_t known) const;
  static std::vector<FrameRecord> stack_of(const Site& site, const OpPlace& at);
  std::vector<std::pair<Site*, std::size_t>> running_;  // stacks of the step that runs
  std::map<std::string, Site> sites_;
  std::map<std::string, StringId> classes_;     // by module path
  std::map<std::string, std::string> modules_;  // paths by class; empty: several are of it
};

}  // namespace nanhunt::analyze
