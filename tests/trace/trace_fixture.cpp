// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/trace_fixture.h"

#include <algorithm>
#include <fstream>
#include <span>
#include <system_error>

#include "tests/trace/batch_text.h"

namespace nanhunt::trace_testing {

namespace fs = std::filesystem;

RunInfo TraceTest::info() {
  RunInfo info;
  info.command = {"nanhunt", "train", "adam-eps"};
  info.nanhunt_version = "0.1.0";
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = "ops";
  info.scenario = "adam-eps";
  info.dtypes = {"fp16"};
  info.options = {{"seed", "7"}};
  info.packages = {{"torch", "2.13.0"}};
  info.commit = "0123abcd";
  info.tree = "changed";
  info.started = "2026-01-02T03:04:05Z";
  info.host = "node-1";
  info.pid = 4242;
  return info;
}

std::string TraceTest::write_trace(const std::string& run, const std::vector<RecordBatch>& batches,
                                   const TraceWriterOptions& options, bool close) {
  auto writer = TraceWriter::create(path(run), info(), options);
  EXPECT_TRUE(writer.is_ok()) << writer.status().message();
  if (!writer) return {};
  for (const RecordBatch& batch : batches) {
    const Status status = (*writer)->write(batch);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  if (close) {
    const Status status = (*writer)->close();
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  return (*writer)->attempt_dir();
}

ReadResult TraceTest::read(const std::string& path) {
  ReadResult result;
  AttemptTrace attempt;
  attempt.dir = path;
  result.status = read_attempt(
      attempt,
      [&](const RecordBatch& batch) {
        result.batches.push_back(batch);
        append_batch(batch, result.all);
      },
      result.health);
  return result;
}

std::vector<std::byte> TraceTest::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void TraceTest::save(const std::string& path, const std::vector<std::byte>& bytes) {
  std::error_code ignored;
  fs::remove(path, ignored);  // some file systems flush a file that is truncated and written again
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good()) << path;
}

std::vector<std::string> TraceTest::segments(const std::string& attempt_dir) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(attempt_dir)) {
    if (entry.path().extension() == ".nht") found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace nanhunt::trace_testing
