// SPDX-License-Identifier: Apache-2.0
// make_golden_trace FOLDER: writes a golden pair of the current format version, FOLDER/vX.Y/ and FOLDER/vX.Y.txt.
// Refuses if the version is there already: golden traces are added, never replaced.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "src/trace/encoding/limits.h"
#include "tests/trace/golden_text.h"
#include "tests/trace/random_batch.h"

namespace {

nanhunt::Status make(const std::string& run) {
  nanhunt::RunInfo info;
  info.command = {"nanhunt", "train", "adam-eps"};
  info.nanhunt_version = "0.1.0";
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = "ops";
  info.scenario = "adam-eps";
  info.dtypes = {"fp16", "fp32"};
  info.options = {{"seed", "7"}, {"lr", "0.001"}};
  info.packages = {{"torch", "2.13.0"}, {"numpy", "2.3.4"}};
  info.commit = "0123abcd";
  info.tree = "changed";
  info.started = "2026-01-02T03:04:05Z";
  info.host = "node-1";
  info.pid = 4242;
  auto writer = nanhunt::TraceWriter::create(run, info, {.segment_bytes = 2500, .zstd_level = 1});
  if (!writer) return writer.status();
  nanhunt::trace_testing::RandomBatches random(2026);
  for (int i = 0; i < 3; ++i) {
    if (nanhunt::Status status = (*writer)->write(random.next(8)); !status) return status;
  }
  return (*writer)->close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden_trace FOLDER\n", stderr);
    return 2;
  }
  const std::string run = fmt::format("{}/v{}.{}", argv[1], nanhunt::trace::kFormatMajor, nanhunt::trace::kFormatMinor);
  if (std::filesystem::exists(run)) {
    std::fprintf(stderr, "%s exists: a golden trace is never replaced; a changed format is a new version\n",
                 run.c_str());
    return 2;
  }
  if (nanhunt::Status status = make(run); !status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 6;
  }
  const auto text = nanhunt::trace_testing::golden_text(run);
  if (!text) {
    std::fprintf(stderr, "%s\n", text.status().message().c_str());
    return 3;
  }
  std::ofstream twin(run + ".txt", std::ios::binary);
  twin << *text;
  return twin.flush() ? 0 : 6;
}
