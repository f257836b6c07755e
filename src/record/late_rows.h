// SPDX-License-Identifier: Apache-2.0
// What waits for statistics that are taken where the host cannot read: values, ops that are to be judged by them, and the
// batches of rows that may not go before. RowBuilder keeps it; row_builder_late.cpp says what happens when something comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/trace.h"
#include "src/record/op_table.h"
#include "src/record/pending_rows.h"

namespace nanhunt::record {

enum class LateState : std::uint8_t { kWaiting, kKnown, kUnknown };

struct LateValue {
  LateState state = LateState::kWaiting;
  TensorStats stats;
  std::uint64_t storage = 0;
  std::int64_t numel = 0;
  std::uint64_t batch = 0;  // that holds its row; 0: none does
  std::size_t row = 0;
  std::uint64_t since = 0;    // ends of steps when it was told
  std::uint32_t users = 0;    // ops that wait for it, or need it when they are judged
  std::vector<ValueId> followers;  // views of the same elements in the same order
  std::vector<std::pair<std::uint64_t, std::size_t>> marks;  // of it: batch, row
};

// What was found in elements, by the host or by whoever read them for it.
struct FoundElement {
  std::size_t output = 0;
  bool nan = false;
  std::int64_t flat_index = -1;
  double number = 0;
  std::vector<LateOperand> operands;
};
struct FoundHistogram {
  bool of_output = false;
  std::size_t index = 0;
  std::int32_t min_exponent = 0;
  std::vector<std::int64_t> bins;
};

struct LateOp {
  std::uint64_t seq = 0, batch = 0;
  std::size_t row = 0;
  std::uint64_t number = 0;  // its findings come under; 0: none do
  std::uint64_t since = 0;
  bool findings_wait = false;
  bool bad = false;          // it was known when it was told
  OpTraits traits;
  struct Input {
    ValueId value = 0;
    StringId slot = 0;
    ArgRole role = ArgRole::kRead;
    bool has_data = false;  // the host could read it
  };
  struct Output {
    ValueId value = 0;
    DType dtype = DType::kF32;
    bool has_data = false;
  };
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<std::pair<StringId, double>> scalars;
  std::vector<FoundElement> elements;
  std::vector<FoundHistogram> histograms;
  std::int64_t flushed = -1, updates = -1, lost_updates = 0;
  double lost_update_share = 0;
  bool has_update_slots = false;  // its last three scalars are room for lost updates
};

// A batch that is complete but for what it waits for.
struct HeldRows {
  PendingRows rows;
  std::size_t bytes = 0;
  std::uint64_t next_seq = 0;
  bool thinned = false;  // there was no room for it
};

// What was not learnt of ops whose contents the host could not read.
struct NotTaken {
  std::uint64_t statistics = 0;  // values, and findings as a whole, that were lost or came too late
  std::uint64_t elements = 0, flushed = 0, histograms = 0, updates = 0;
  bool operator==(const NotTaken&) const = default;
};

struct LateRows {
  std::unordered_map<ValueId, LateValue> values;
  std::unordered_map<std::uint64_t, ValueId> value_of;  // by the number it comes under
  std::unordered_map<std::uint64_t, LateOp*> op_of;
  std::deque<ValueId> order;  // values that wait, or waited, oldest first
  std::deque<LateOp> ops;     // by seq; judged in this order
  std::deque<HeldRows> held;  // by number; handed over in this order
  std::size_t held_bytes = 0;
  std::uint64_t steps = 0;  // ends of steps so far
  std::uint64_t told = 0, anomalies = 0;
  NotTaken not_taken, noted;  // noted: NoteRecords tell of it
};

}  // namespace nanhunt::record
