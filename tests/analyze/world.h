// SPDX-License-Identifier: Apache-2.0
// A training run on several ranks, written by hand: one trace each, and what they exchange.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/trace_builder.h"

namespace nanhunt::testing_support {

// Ranks are told by their place, 0 to n-1; `numbers` are what they are called in the traces.
class World {
 public:
  explicit World(std::vector<std::uint32_t> numbers) : numbers_(std::move(numbers)), ranks_(numbers_.size()) {}

  std::size_t size() const { return ranks_.size(); }
  TraceBuilder& operator[](std::size_t rank) { return ranks_[rank]; }

  CollectiveRecord call(std::size_t rank, CollectiveKind kind, Reduction reduction, int peer = -1) {
    CollectiveRecord record;
    record.kind = kind;
    record.reduction = reduction;
    if (peer >= 0) record.peer = static_cast<std::int32_t>(numbers_[static_cast<std::size_t>(peer)]);
    record.ranks = numbers_;
    std::sort(record.ranks.begin(), record.ranks.end());
    const bool lone = kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
    record.call = calls_[{rank, lone ? kind : CollectiveKind::kBarrier, lone ? peer : -1}]++;
    return record;
  }
  // Each rank's share is written over by what it gets.
  void all_reduce(std::vector<Handle>& shares, const std::vector<Numbers>& results,
                  Reduction reduction = Reduction::kSum) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      ranks_[rank].collective(call(rank, CollectiveKind::kAllReduce, reduction));
      ranks_[rank].in("", Phase::kComm).in_place("c10d::allreduce_", shares[rank], {}, results[rank]);
    }
  }
  void broadcast(std::size_t root, std::vector<Handle>& values, const std::vector<Numbers>& results) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      ranks_[rank].collective(call(rank, CollectiveKind::kBroadcast, Reduction::kNone, static_cast<int>(root)));
      ranks_[rank].in("", Phase::kComm).in_place("c10d::broadcast_", values[rank], {}, results[rank]);
    }
  }
  Handle send(std::size_t from, std::size_t to, const Handle& value, const Numbers& got) {
    ranks_[from].collective(call(from, CollectiveKind::kSend, Reduction::kNone, static_cast<int>(to)));
    ranks_[from].in("", Phase::kComm).op_with_outputs("c10d::send", {{"tensors", value}}, {});
    ranks_[to].collective(call(to, CollectiveKind::kRecv, Reduction::kNone, static_cast<int>(from)));
    Handle place = ranks_[to].value(finite().unread());
    ranks_[to].in("", Phase::kComm).in_place("c10d::recv_", place, {}, got);
    return place;
  }

  // What the traces give together; ranks in `missing` left none.
  Analysis analysis(const std::set<std::size_t>& missing = {}, const std::string& level = "ops") const {
    const TempDir dir;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (missing.contains(rank)) continue;
      RunInfo info;
      info.rank = numbers_[rank];
      info.world_size = static_cast<std::uint32_t>(size());
      info.level = level;
      auto writer = TraceWriter::create(dir.path(), info);
      EXPECT_TRUE(writer.is_ok()) << writer.status().message();
      for (const RecordBatch& batch : ranks_[rank].batches(5)) EXPECT_TRUE((*writer)->write(batch).is_ok());
      EXPECT_TRUE((*writer)->close().is_ok());
    }
    auto analysis = analyze_run(dir.path());
    EXPECT_TRUE(analysis.is_ok()) << analysis.status().message();
    return std::move(*analysis);
  }

  // A line a finding as `table` has them, then the places of ranks: "@ 2 > 0 1 3 by allreduce". In no order of ranks.
  std::string lines(const Analysis& analysis) const {
    std::vector<std::string> out;
    for (const Finding& f : analysis.findings) {
      Analysis one;
      one.findings = {f};
      std::string line = table(one);
      line.pop_back();
      line += " @" + places(f.ranks);
      for (const RankPropagation& propagation : f.rank_propagation) line += " >" + places(propagation.ranks) + " by " + propagation.through;
      out.push_back(line + "\n");
    }
    std::sort(out.begin(), out.end());
    return out.empty() ? std::string(verdict_status_name(analysis.verdict.status)) + "\n"
                       : std::accumulate(out.begin(), out.end(), std::string());
  }

 private:
  std::string places(const std::vector<std::uint32_t>& ranks) const {
    std::set<std::size_t> sorted;
    for (const std::uint32_t rank : ranks) {
      sorted.insert(static_cast<std::size_t>(std::find(numbers_.begin(), numbers_.end(), rank) - numbers_.begin()));
    }
    std::string text;
    for (const std::size_t place : sorted) text += " " + std::to_string(place);
    return text;
  }

  std::vector<std::uint32_t> numbers_;
  std::vector<TraceBuilder> ranks_;
  std::map<std::tuple<std::size_t, CollectiveKind, int>, std::uint64_t> calls_;
};

inline std::vector<std::uint32_t> in_order(std::size_t ranks) {
  std::vector<std::uint32_t> numbers(ranks);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

}  // namespace nanhunt::testing_support
