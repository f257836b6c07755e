// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "nanhunt/trace.h"
#include "tests/support/eventually.h"

namespace nanhunt::testing_support {

// What can be read of a run that may still be going.
inline std::size_t ops_in(const std::string& run_dir) {
  std::size_t ops = 0;
  TraceHealth health;
  const auto attempts = find_attempts(run_dir);
  if (attempts && !attempts->empty()) {
    static_cast<void>(read_attempt(attempts->front(), [&](const RecordBatch& b) { ops += b.ops.size(); }, health));
  }
  return ops;
}

// Kills the process that records there, once so many ops are in its file.
inline void kill_once_there_are(std::size_t ops, const std::string& run_dir, pid_t recording) {
  EXPECT_TRUE(eventually([&] { return ops_in(run_dir) >= ops; }));
  EXPECT_EQ(kill(recording, SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(waitpid(recording, &status, 0), recording);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
}

}  // namespace nanhunt::testing_support
