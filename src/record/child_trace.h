// SPDX-License-Identifier: Apache-2.0
// Forks, and the trace of a forked child that goes on where its parent's recorder stands: written beside the parent's segments,
// read back by the parent, and removed. Whoever reads the attempt passes it over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/record/rows/interner.h"

namespace nanhunt::record {

// How often this process came out of a fork().
std::uint64_t forks_so_far();

// Bytes of a child's trace: past them it is not read.
inline constexpr std::uint64_t kMaxChildBytes = 256u << 20;

// Writes it, in the child, from the first rows on. What fails is told at the end: the parent then takes nothing over.
class ChildWriter {
 public:
  ChildWriter(std::string attempt_dir, RecordBatch names);
  void write(const RecordBatch& rows);
  Status end();

 private:
  const std::string attempt_dir_;
  RecordBatch names_;
  std::unique_ptr<TraceWriter> writer_;
  Status status_;
};

// All of it, or why not: it must have ended, undamaged.
Result<std::vector<RecordBatch>> read_child_trace(const std::string& attempt_dir);

void remove_child_trace(const std::string& attempt_dir) noexcept;

// All names and layouts that have a number, so that the trace stands alone and its numbers can be checked.
RecordBatch restated(const StringInterner& strings, const LayoutInterner& layouts);

}  // namespace nanhunt::record
