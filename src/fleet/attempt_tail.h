// SPDX-License-Identifier: Apache-2.0
// What the steps of one attempt came to so far, followed while it is being recorded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "src/trace/tail_reader.h"

namespace nanhunt::fleet {

struct TailNumbers {
  std::optional<std::uint32_t> last_step, first_bad;
  std::uint64_t bad_steps = 0;      // loss, gradients, parameters or state were not finite, and no loss scaler skipped it
  std::uint64_t skipped_steps = 0;  // by a loss scaler
  std::optional<double> loss, lr, scale, gradient_norm, seconds_per_step;  // of the last step; none: not known
  std::optional<double> watching;  // share of the time of the last steps that watching took, estimated
};

class AttemptTail {
 public:
  explicit AttemptTail(const std::string& attempt_dir);

  void read(std::uint64_t most_bytes);  // what came since the last call
  TailNumbers numbers() const;
  bool ended() const { return reader_.ended(); }
  bool behind() const { return reader_.behind(); }
  bool damaged() const { return reader_.damaged(); }

 private:
  struct Step {
    bool bad = false, skipped = false;
    std::optional<std::int64_t> at_ns;
    std::int64_t watch_ns = 0;
  };

  void add(const RecordBatch& batch);
  Step* step(std::uint32_t number);  // nullptr: it was counted already
  void count_old_steps();

  trace::TailReader reader_;
  std::map<std::uint32_t, Step> open_;  // the newest, of which rows may still come
  TailNumbers counted_;                 // of the steps before those
  std::optional<std::uint32_t> counted_through_;
};

}  // namespace nanhunt::fleet
