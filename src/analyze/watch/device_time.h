// SPDX-License-Identifier: Apache-2.0
// What a GPU ran for each op, where that was watched: time by op, nanhunt's own share, and the kernels of ops that made
// something that is not finite. Bounded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

class DeviceTimes {
 public:
  static constexpr std::size_t kOps = 1u << 17;      // that are remembered: kernels come steps after their ops
  static constexpr std::size_t kBadOps = 1u << 16;   // whose kernels are remembered for good
  static constexpr std::size_t kGroups = 1u << 14;   // modules and ops that are told apart
  static constexpr std::size_t kRows = 64;

  explicit DeviceTimes(const Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void on_kernel(const KernelRecord& record);

  // Of the op that took longest to run; "" where none is known.
  std::string kernel_of(std::uint64_t seq) const;
  std::optional<DeviceTime> section() const;  // null: no kernel was watched

 private:
  struct Op {
    std::uint64_t seq = kNoSeq;
    StringId module = 0, op = 0;
    Phase phase = Phase::kForward;
  };
  struct Longest {
    StringId name = 0;
    std::int64_t duration_ns = -1;  // -1: no kernel; 0 also where no time is known
    void see(StringId kernel, std::int64_t nanoseconds) {
      if (nanoseconds <= duration_ns) return;
      name = kernel;
      duration_ns = nanoseconds;
    }
  };
  struct Group {
    std::uint64_t kernels = 0, timed = 0;
    std::int64_t duration_ns = 0;
    std::unordered_map<StringId, std::int64_t> names;  // time of each, the first kNamesOfGroup of them
  };
  using Key = std::tuple<StringId, StringId, Phase, bool>;  // module, op, phase, of an op

  const Names& names_;
  std::vector<Op> ops_;  // a ring by seq; empty until a first op
  std::unordered_map<std::uint64_t, Longest> bad_;
  std::map<Key, Group> groups_;
  Group beyond_;  // groups past kGroups together
  std::uint64_t kernels_ = 0, timed_ = 0, own_kernels_ = 0;
  std::int64_t total_ns_ = 0, own_ns_ = 0, without_op_ns_ = 0;
};

}  // namespace nanhunt::analyze
