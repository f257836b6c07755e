// SPDX-License-Identifier: Apache-2.0
// Small real traces, written with the writer that runs use.
#pragma once

#include <cstdint>
#include <string>

namespace nanhunt::testing_tools {

struct TraceOptions {
  std::string module = "fc1";  // of the op that may go bad
  std::string site = "loss.py:12";  // line of code that calls every op
  std::uint32_t steps = 8;
  bool bad = true;  // sqrt of a negative number in the loss of step 2
  bool clean_end = true;
  std::uint32_t rank = 0;
  std::string framework = "test";
  bool watched = false;  // one row of each kind that watching a run and replaying its steps adds, in step 2
  std::string capture = {};  // file name in a CaptureRecord of the bad op, seq 4
};

// Writes RUN/rank-NNNNN/attempt-K and gives the segment's path.
std::string write_sample_trace(const std::string& run, const TraceOptions& options = {});
// A run.json and a segment without one record.
void write_empty_trace(const std::string& run);

}  // namespace nanhunt::testing_tools
