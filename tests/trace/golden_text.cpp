// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/golden_text.h"

#include <fmt/format.h>

#include "tests/trace/batch_text.h"

namespace nanhunt::trace_testing {

Result<std::string> golden_text(const std::string& run) {
  const auto attempts = find_attempts(run);
  if (!attempts) return attempts.status();
  std::string text;
  for (const AttemptTrace& attempt : *attempts) {
    text += info_text(attempt.info);
    TraceHealth health;
    Status status = read_attempt(
        attempt, [&](const RecordBatch& batch) { text += "batch\n" + batch_text(batch); }, health);
    if (!status) return status;
    text += fmt::format("clean_end={} segments={} chunks={} rows={} bytes={} unknown_chunks={}\n", health.clean_end,
                        health.segments, health.chunks, health.rows, health.bytes, health.unknown_chunks);
  }
  return text;
}

}  // namespace nanhunt::trace_testing
