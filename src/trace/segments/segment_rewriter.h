// SPDX-License-Identifier: Apache-2.0
// Copies closed segments into one new file without the steps that a rule gives up. Everything that a kept row names
// stays, and so does what rows of later segments may name; what goes is counted in RetiredRecords.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/trace/segments/segment.h"
#include "src/trace/segments/segment_writer.h"

namespace nanhunt::trace {

class StepRule {
 public:
  virtual ~StepRule() = default;
  virtual bool keeps(std::uint32_t step) const = 0;
};

// Values of how many newest versions of a storage later rows may name; the recorder's ValueTableLimits::versions.
inline constexpr std::uint32_t kNameableVersions = 4;

// `sources` are consecutive segments of one attempt, whole; `header` is that of the new one, `tables` those of the
// attempt, of which the new segment holds the first `tables_end`. On a failure `path` may be left half written.
Status rewrite_segments(std::span<const std::string> sources, const StepRule& rule, const FileHeader& header,
                        const RecordBatch& tables, TableCounts tables_end, const std::string& path, SegmentWriter& out);

}  // namespace nanhunt::trace
