// SPDX-License-Identifier: Apache-2.0
// Ties kernels to ops: correlation records, kernel records and launches in any order, collected first, then joined.
// Knows nothing of CUDA.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::hooks {

// External ids. Those of CUSTOM1 are tickets that KernelJoin hands out; 0 is none.
inline constexpr std::uint64_t kOwnTicket = ~std::uint64_t{0};
inline constexpr std::uint64_t place_id(std::uint32_t step, Phase phase) {
  return (std::uint64_t{step} << 8 | static_cast<std::uint64_t>(phase)) + 1;
}
inline constexpr std::uint32_t step_of_place(std::uint64_t id) {
  return id == 0 ? 0 : static_cast<std::uint32_t>((id - 1) >> 8);
}

// What CUPTI's records say, as far as it is needed here.
struct OpTag {  // CUSTOM1: correlation is of the op with that ticket
  std::uint32_t correlation = 0;
  std::uint64_t ticket = 0;
};
struct PlaceTag {  // CUSTOM2
  std::uint32_t correlation = 0;
  std::uint64_t place = 0;
};
struct KernelRun {
  std::uint32_t correlation = 0;
  std::string_view name;            // empty: CUPTI gave none
  std::uint64_t start = 0, end = 0;  // both 0, or end before start: not known
  std::uint64_t graph_node = 0;     // 0: of no graph
};
struct Launch {  // a driver call
  std::uint32_t correlation = 0;
  bool of_graph = false;
};

struct JoinLimits {
  std::size_t max_pending = 1u << 18;  // records that wait, of each sort
  std::uint32_t max_age = 16;          // collections after which what waits goes without its op
};

struct JoinStats {
  std::uint64_t kernels = 0;          // told, in rows
  std::uint64_t own = 0;              // of these, nanhunt's
  std::uint64_t without_op = 0;       // of these, of no op
  std::uint64_t untimed = 0;          // of these, without times
  std::uint64_t unnamed = 0;          // of these, without a name
  std::uint64_t duplicates = 0;       // records that came twice
  std::uint64_t launches_without_kernel = 0;  // aged out: their records never came
  std::uint64_t given_up = 0;         // records beyond max_pending
  bool operator==(const JoinStats&) const = default;
};

// One row: kernels of one op (or of none) and name.
struct JoinedKernels {
  std::uint64_t seq = kNoSeq;
  std::uint32_t step = 0;
  bool own = false;
  std::string name;
  std::uint64_t count = 0, timed = 0;
  std::int64_t duration_ns = 0;
  bool operator==(const JoinedKernels&) const = default;
};

// Not thread-safe. Tickets rise, so that of two tags for one launch the higher is the inner op's.
class KernelJoin {
 public:
  explicit KernelJoin(const JoinLimits& limits = {}) : limits_(limits) {}

  // The op of this ticket is recorded as `seq` (kNoSeq: it is not) in this step. It may come after its kernels.
  void bind(std::uint64_t ticket, std::uint64_t seq, std::uint32_t step);
  void add(const OpTag& tag);
  void add(const PlaceTag& tag);
  void add(const KernelRun& run);
  void add(const Launch& launch);

  // Rows of all kernels whose op is known by now, and of those that waited too long; by step, seq, own and name.
  // `now` is the step of those that say none.
  std::vector<JoinedKernels> collect(std::uint32_t now) { return collect(now, false); }
  // The same, of everything: nothing more will come.
  std::vector<JoinedKernels> finish(std::uint32_t now) { return collect(now, true); }

  const JoinStats& stats() const { return stats_; }
  std::size_t pending() const { return kernels_.size() + entries_.size() + bound_.size(); }

 private:
  using NameId = std::uint32_t;
  struct Entry {  // of one correlation id
    std::uint64_t ticket = 0, place = 0;
    std::uint32_t touched = 0;  // collection
    bool launched = false, of_graph = false, has_kernel = false;
  };
  struct Waiting {
    std::uint32_t correlation = 0;
    NameId name = 0;
    std::int64_t duration_ns = -1;  // -1: not known
    std::uint32_t since = 0;        // collection
  };
  struct Bound {
    std::uint64_t seq = kNoSeq;
    std::uint32_t step = 0, touched = 0;
  };
  struct Sums {
    std::uint64_t count = 0, timed = 0;
    std::int64_t duration_ns = 0;
  };
  // step, seq, own, name
  using Rows = std::map<std::tuple<std::uint32_t, std::uint64_t, bool, NameId>, Sums>;

  Entry* entry(std::uint32_t correlation);  // nullptr: no room
  NameId number(std::string_view name);
  bool join_one(const Waiting& kernel, bool last_chance, std::uint32_t now, Rows& rows);
  void age();
  void forget_old_prints();
  std::vector<JoinedKernels> collect(std::uint32_t now, bool all);

  const JoinLimits limits_;
  JoinStats stats_;
  std::uint32_t collection_ = 0;
  std::unordered_map<std::uint32_t, Entry> entries_;
  std::unordered_map<std::uint64_t, Bound> bound_;
  std::vector<Waiting> kernels_;
  std::unordered_set<std::uint64_t> seen_, seen_before_;  // fingerprints of kernel records: some come twice
  std::unordered_map<std::string, NameId> names_;
  std::vector<const std::string*> texts_;  // by id - 1
};

}  // namespace nanhunt::hooks
