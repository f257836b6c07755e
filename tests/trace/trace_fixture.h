// SPDX-License-Identifier: Apache-2.0
// A temporary run folder, and short ways to write and read traces in it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "nanhunt/trace.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::trace_testing {

struct ReadResult {
  Status status;
  TraceHealth health;
  std::vector<RecordBatch> batches;
  RecordBatch all;  // the batches, one behind the other
};

class TraceTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return root_.path(name); }
  static RunInfo info();
  // Writes RUN/rank-00000/attempt-K and closes it; returns the attempt's folder.
  std::string write_trace(const std::string& run, const std::vector<RecordBatch>& batches,
                          const TraceWriterOptions& options = {}, bool close = true);

  static ReadResult read(const std::string& path);
  static std::vector<std::byte> load(const std::string& path);
  static void save(const std::string& path, const std::vector<std::byte>& bytes);
  static std::vector<std::string> segments(const std::string& attempt_dir);  // paths, in order

 private:
  testing_support::TempDir root_;
};

}  // namespace nanhunt::trace_testing
