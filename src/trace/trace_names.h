// SPDX-License-Identifier: Apache-2.0
// Names, layouts and recent rows of one attempt, so that a row can be shown with words instead of ids.
// Bounded whatever the trace holds.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::trace {

// What is remembered of a value.
struct ValueBrief {
  LayoutId layout = 0;
  bool has_stats = false;
  bool is_bad = false;  // something in it is not finite; where that was not counted, the counts are 0
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0;
};
// What is remembered of an op.
struct OpBrief {
  std::uint64_t seq = 0;
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::kForward;
  StringId module = 0, op = 0;
};

class TraceNames {
 public:
  void add(const RecordBatch& batch);

  const std::string& text(StringId id) const;  // "" when it is not known
  const LayoutRecord* layout(LayoutId id) const;
  const ValueBrief* value(ValueId id) const;
  const OpBrief* op(std::uint64_t seq) const;

 private:
  std::unordered_map<StringId, std::string> strings_;
  std::unordered_map<LayoutId, LayoutRecord> layouts_;
  std::unordered_map<ValueId, ValueBrief> values_;
  std::deque<ValueId> value_order_;  // oldest first
  std::unordered_map<std::uint64_t, OpBrief> ops_;
  std::deque<std::uint64_t> op_order_;
};

}  // namespace nanhunt::trace
