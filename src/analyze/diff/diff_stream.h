// SPDX-License-Identifier: Apache-2.0
// One attempt, read step by step on a thread of its own, so that two traces can be walked side by side in bounded
// memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::analyze {

// What a comparison needs of one output.
struct DiffValue {
  bool known = false;  // its contents were read
  bool counted = false, summed = false, any_nonfinite = false;
  DType dtype = DType::kF32;
  std::int64_t numel = 0, nan = 0, pos_inf = 0, neg_inf = 0, zero = 0;
  double amax = 0, sum_sq = 0;
};

// An op, or a value that came from outside: "<batch>", "<state>".
struct DiffRow {
  std::uint64_t seq = kNoSeq;
  std::uint32_t micro_batch = 0;
  Phase phase = Phase::kForward;
  StringId module = 0, op = 0;
  DType compute_dtype = DType::kF32;
  double terms = 1;         // how many numbers are summed up for one of the output
  bool fresh = true;        // no input was bad
  std::uint32_t first_output = 0, output_count = 0;
};

// The rows of one step, or the next kMaxRows of them, or fewer where these have very many outputs.
struct DiffStep {
  static constexpr std::size_t kMaxRows = 1u << 16;
  std::uint32_t step = 0, part = 0;
  std::vector<StringRecord> strings;  // new since the block before
  std::vector<DiffRow> rows;
  std::vector<DiffValue> outputs;
  std::optional<StepRecord> end;
  std::optional<HealthRecord> health;
};

class DiffStream {
 public:
  explicit DiffStream(AttemptTrace attempt);
  ~DiffStream();  // stops reading
  DiffStream(const DiffStream&) = delete;
  DiffStream& operator=(const DiffStream&) = delete;

  std::optional<DiffStep> next();  // nullopt: no more
  // After the last step: as read_attempt.
  const Status& status() const { return status_; }
  const TraceHealth& health() const { return health_; }
  const std::string& why_no_tap() const { return why_no_tap_; }

 private:
  class Gather;
  bool push(DiffStep&& step);  // waits for room; false: nobody wants it any more

  AttemptTrace attempt_;
  Status status_;
  TraceHealth health_;
  std::string why_no_tap_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<DiffStep> ready_;
  bool ended_ = false, stopped_ = false;
  std::thread reader_;
};

}  // namespace nanhunt::analyze
