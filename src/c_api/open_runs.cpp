// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/open_runs.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

namespace nanhunt::c_api {
namespace {

namespace fs = std::filesystem;

// A forked child records nothing: its parent's runs are not its own.
struct OpenRuns {
  std::mutex mutex;
  std::vector<std::pair<pid_t, std::string>> runs;
};

OpenRuns& open_runs() {
  static OpenRuns all;
  return all;
}

std::string real(const std::string& path) {
  std::error_code failed;
  fs::path all = fs::weakly_canonical(path, failed);
  all = (failed ? fs::path(path) : all).lexically_normal();
  return (all.has_filename() ? all : all.parent_path()).string();
}

}  // namespace

void add_open_run(const std::string& attempt_dir) {
  OpenRuns& all = open_runs();
  std::string dir = real(attempt_dir);
  const std::lock_guard lock(all.mutex);
  all.runs.emplace_back(getpid(), std::move(dir));
}

void remove_open_run(const std::string& attempt_dir) noexcept {
  try {
    OpenRuns& all = open_runs();
    const std::string dir = real(attempt_dir);
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.runs, [&](const auto& run) { return run.second == dir; });
  } catch (...) {  // no memory: a report may call it still going
  }
}

bool is_recorded_here(const std::string& attempt_dir) {
  OpenRuns& all = open_runs();
  const std::pair run(getpid(), real(attempt_dir));
  const std::lock_guard lock(all.mutex);
  return std::ranges::find(all.runs, run) != all.runs.end();
}

}  // namespace nanhunt::c_api
