// SPDX-License-Identifier: Apache-2.0
// What one rank gave to others and got from them, as far as it matters once the ranks are put together: calls in which
// something was not finite, and which calls were seen at all.
#pragma once

#include <cstdint>
#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/analyze/stream/names.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Calls that the ranks of a group count alike: its collectives, or what one rank sends to another.
struct CommStream {
  std::string group;
  std::vector<std::uint32_t> ranks;       // of the group, ascending
  std::int64_t from = -1, to = -1;        // of sends and receives, as global ranks
  auto operator<=>(const CommStream&) const = default;
};

// Numbers of calls, as runs of consecutive ones.
class CallSet {
 public:
  void add(std::uint64_t call);
  bool contains(std::uint64_t call) const;

 private:
  static constexpr std::size_t kMaxRuns = 4096;  // then gaps count as if they were in it
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs_;  // ascending, apart
};

struct CallFacts {
  std::uint64_t call = 0, seq = kNoSeq;
  std::uint32_t step = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  std::int32_t peer = -1;
  bool gives = true, gets = true;
  bool share_known = true, result_known = true;
  std::uint8_t gave = 0, got = 0;  // BadKind bits
  std::vector<BirthId> given;      // births of what it gave
  BirthId born = 0;                // bad numbers came in here, and no watched share of this rank explains them
  double amax = 0;                 // of what it gave, over finite numbers
  std::int64_t numel = 0;          // of what it gave
  DType dtype = DType::kF32;
  Phase phase = Phase::kComm;
  StringId op = 0, module = 0, name = 0;
  bool gradient = false;           // what it gave is a gradient
};

// What this rank knows of one stream.
struct CommStreamCalls {
  CallSet seen;    // with the op
  CallSet unread;  // of them, those whose share was not read
  std::map<std::uint64_t, CallFacts> facts;  // by call: those that are not plain finite numbers
  std::uint64_t forgotten_from = kNoSeq;     // from this call on facts are not complete
};

class CommWatch {
 public:
  explicit CommWatch(const Names& names) : names_(names) {}

  void set_rank(std::uint32_t rank) { rank_ = rank; }
  void on_row(const CollectiveRecord& row);
  // The call that this op is, where its row came first.
  const CollectiveRecord* call_of(const OpRecord& op);
  void on_op(const OpInView& op, const ValueGraph& graph);
  // A result that was not read at once turned out bad.
  void on_deferred(const ValueGraph::DeferredResult& result);

  const std::map<CommStream, CommStreamCalls>& streams() const { return streams_; }
  std::uint64_t calls() const { return calls_; }

 private:
  static constexpr std::size_t kMaxFacts = 1u << 16, kMaxLarge = 1u << 12, kMaxWaiting = 1u << 16,
                               kMaxUnread = 1u << 12;

  CommStream stream_of(const CollectiveRecord& row) const;
  CallFacts read(const OpInView& op, const ValueGraph& graph) const;
  void settle(const CollectiveRecord& row, CallFacts facts);

  const Names& names_;
  std::optional<std::uint32_t> rank_;
  std::map<CommStream, CommStreamCalls> streams_;
  std::map<std::uint64_t, CollectiveRecord> rows_;  // by seq, whose op has not come yet
  CollectiveRecord current_;                        // of the op at hand
  std::map<std::uint64_t, CallFacts> early_;        // ops of phase comm whose row has not come yet
  std::map<std::uint64_t, std::pair<CommStream, CallFacts>> unread_;  // by seq: calls whose result was not read
  std::size_t kept_ = 0, large_ = 0;
  std::uint64_t calls_ = 0;
};

}  // namespace nanhunt::analyze
