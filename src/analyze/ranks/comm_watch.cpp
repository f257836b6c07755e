// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/ranks/comm_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/analyze/graph/call.h"
#include "src/analyze/graph/lifecycle.h"

namespace nanhunt::analyze {
namespace {

bool reduces_by_size(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kAvg || reduction == Reduction::kProduct;
}

// Finite, but so large that the ranks together may pass the format.
bool is_large(const CallFacts& facts, std::size_t ranks) {
  if (!facts.gives || !reduces_by_size(facts.reduction) || !is_floating(facts.dtype)) return false;
  const double most = format_limits(facts.dtype).max_finite;
  const double many = static_cast<double>(std::max<std::size_t>(2, ranks));
  if (facts.reduction == Reduction::kProduct) return facts.amax > 0 && std::log2(facts.amax) * many > std::log2(most);
  return facts.amax * many > most;
}

}  // namespace

void CallSet::add(std::uint64_t call) {
  auto next = std::upper_bound(runs_.begin(), runs_.end(), call,
                               [](std::uint64_t c, const auto& run) { return c < run.first; });
  if (next != runs_.begin()) {
    auto& before = *std::prev(next);
    if (call <= before.second) return;
    if (call == before.second + 1) {
      before.second = call;
      if (next != runs_.end() && next->first == call + 1) {
        before.second = next->second;
        runs_.erase(next);
      }
      return;
    }
  }
  if (next != runs_.end() && next->first == call + 1) {
    next->first = call;
  } else if (runs_.size() < kMaxRuns) {
    runs_.insert(next, {call, call});
  } else {
    runs_.back().second = std::max(runs_.back().second, call);
  }
}

bool CallSet::contains(std::uint64_t call) const {
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), call,
                                     [](std::uint64_t c, const auto& run) { return c < run.first; });
  return next != runs_.begin() && call <= std::prev(next)->second;
}

CommStream CommWatch::stream_of(const CollectiveRecord& row) const {
  CommStream stream{names_.text(row.group), row.ranks, -1, -1};
  std::sort(stream.ranks.begin(), stream.ranks.end());
  const std::int64_t own = rank_ ? static_cast<std::int64_t>(*rank_) : -1;
  if (row.kind == CollectiveKind::kSend) {
    stream.from = own;
    stream.to = row.peer;
  } else if (row.kind == CollectiveKind::kRecv) {
    stream.from = row.peer;
    stream.to = own;
  }
  return stream;
}

void CommWatch::on_row(const CollectiveRecord& row) {
  if (row.kind == CollectiveKind::kBarrier) return;
  ++calls_;
  if (row.seq == kNoSeq) return;  // that it was made is all that is known
  if (const auto op = early_.find(row.seq); op != early_.end()) {
    CallFacts facts = std::move(op->second);
    early_.erase(op);
    facts.gives = gives_share(row, rank_);
    facts.gets = gets_result(row, rank_);
    if (!facts.gives) {
      facts.gave = 0;
      facts.given.clear();
    }
    settle(row, std::move(facts));
    return;
  }
  if (rows_.size() >= kMaxWaiting) rows_.erase(rows_.begin());
  rows_.insert_or_assign(row.seq, row);
}

const CollectiveRecord* CommWatch::call_of(const OpRecord& op) {
  if (rows_.empty()) return nullptr;
  const auto row = rows_.find(op.seq);
  if (row == rows_.end()) return nullptr;
  current_ = std::move(row->second);
  rows_.erase(row);
  return &current_;
}

CallFacts CommWatch::read(const OpInView& op, const ValueGraph& graph) const {
  CallFacts facts;
  facts.seq = op.record->seq;
  facts.step = op.record->step;
  facts.phase = op.record->phase;
  facts.op = op.record->op;
  facts.module = op.record->module;
  facts.gives = op.gives;
  facts.gets = op.gets;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    if (!is_share(op, i)) continue;
    const Value* value = op.in[i];
    if (value == nullptr || !value->has_stats) {
      facts.share_known = false;
      continue;
    }
    facts.gave = static_cast<std::uint8_t>(facts.gave | value->bad);
    facts.numel += value->stats.numel;
    facts.gradient = facts.gradient || value->has_role(TensorRole::kBoundaryGradient) || value->made_in == Phase::kBackward;
    if (facts.name == 0) facts.name = value->name;
    if (!value->stats.counted()) {
      facts.amax = std::numeric_limits<double>::infinity();
    } else {
      facts.amax = std::max(facts.amax, value->stats.amax);
    }
    if (const LayoutRecord* layout = names_.layout(value->layout)) facts.dtype = layout->dtype;
  }
  if (facts.gave != 0) facts.given = graph.given();
  for (const Value* value : op.out) {
    if (value == nullptr || !value->has_stats) {
      facts.result_known = false;
    } else if (op.gets) {
      facts.got = static_cast<std::uint8_t>(facts.got | value->bad);
    }
  }
  facts.born = graph.born();
  return facts;
}

void CommWatch::on_op(const OpInView& op, const ValueGraph& graph) {
  if (op.call != nullptr) {
    settle(*op.call, read(op, graph));
    return;
  }
  if (!names_.is_exchange(op.record->phase, op.record->op)) return;
  if (early_.size() >= kMaxWaiting) early_.erase(early_.begin());
  early_.insert_or_assign(op.record->seq, read(op, graph));
}

void CommWatch::on_deferred(const ValueGraph::DeferredResult& result) {
  if (const auto op = early_.find(result.seq); op != early_.end()) {
    op->second.got = static_cast<std::uint8_t>(op->second.got | result.bad);
    if (op->second.born == 0) op->second.born = result.born;
    return;
  }
  const auto it = unread_.find(result.seq);
  if (it == unread_.end()) return;
  CommStreamCalls& stream = streams_[it->second.first];
  const auto [known, added] = stream.facts.try_emplace(it->second.second.call, it->second.second);
  kept_ += added ? 1 : 0;
  CallFacts& facts = known->second;
  facts.got = static_cast<std::uint8_t>(facts.got | result.bad);
  if (facts.born == 0) facts.born = result.born;
}

void CommWatch::settle(const CollectiveRecord& row, CallFacts facts) {
  facts.call = row.call;
  facts.kind = row.kind;
  facts.reduction = row.reduction;
  facts.peer = row.peer;
  CommStreamCalls& stream = streams_[stream_of(row)];
  stream.seen.add(row.call);
  if (facts.gives && !facts.share_known) stream.unread.add(row.call);
  if (facts.gets && !facts.result_known) {
    if (unread_.size() >= kMaxUnread) unread_.erase(unread_.begin());
    unread_.insert_or_assign(facts.seq, std::pair(stream_of(row), facts));
  }
  const bool bad = facts.gave != 0 || facts.got != 0 || facts.born != 0;
  const bool large = !bad && facts.share_known && is_large(facts, row.ranks.size());
  if (!bad && !large) return;
  if (large && large_ >= kMaxLarge) return;
  if (bad && kept_ >= kMaxFacts) {
    stream.forgotten_from = std::min(stream.forgotten_from, row.call);
    return;
  }
  ++(large ? large_ : kept_);
  const std::uint64_t call = facts.call;
  stream.facts.insert_or_assign(call, std::move(facts));
}

}  // namespace nanhunt::analyze
