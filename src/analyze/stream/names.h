// SPDX-License-Identifier: Apache-2.0
// The string and layout tables of a trace, and what each op name means to the analyzer. Texts are raw: reporters
// escape.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/trace.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::analyze {

// Ops that no trace holds: stand-ins for values that were bad before any watched op touched them.
inline constexpr StringId kBatchOp = 0xFFFFFF00u;      // "<batch>"
inline constexpr StringId kStateOp = 0xFFFFFF01u;      // "<state>"
inline constexpr StringId kUnwatchedOp = 0xFFFFFF02u;  // "<unwatched>"

// The module of an op that runs outside of all modules.
inline constexpr std::string_view kOutsideModules = "<loss>";

class Names {
 public:
  void add(const StringRecord& record);
  void add(const LayoutRecord& record);

  const std::string& text(StringId id) const;
  const OpInfo& op(StringId id);                  // cached lookup of text(id)
  const LayoutRecord* layout(LayoutId id) const;  // nullptr: unknown or lost
  // A call between ranks, not what the program or the engine computes around it.
  bool is_exchange(Phase phase, StringId op) const;
  bool is(StringId id, std::string_view text_wanted) const { return text(id) == text_wanted; }

 private:
  struct Entry {
    std::string text;
    const OpInfo* op = nullptr;
  };
  // The format's cap on ids (src/trace/FORMAT.md); higher ones can only come from elsewhere and stay unnamed.
  static constexpr std::uint32_t kMaxId = (1u << 20) - 1;
  std::vector<Entry> strings_;
  std::vector<LayoutRecord> layouts_;
};

}  // namespace nanhunt::analyze
