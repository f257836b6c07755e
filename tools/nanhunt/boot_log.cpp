// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/boot_log.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

namespace nanhunt::cli {
namespace {

constexpr std::size_t kMaxBytes = 256 * 1024;
constexpr std::size_t kMaxFailures = 8;

}  // namespace

BootLogFile::BootLogFile() : file_(::memfd_create("nanhunt-boot", MFD_CLOEXEC)) {
  if (file_ >= 0) path_ = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_);
}

BootLogFile::~BootLogFile() {
  if (file_ >= 0) ::close(file_);
}

BootLog BootLogFile::read() const {
  std::string text(kMaxBytes, '\0');
  const ssize_t n = file_ < 0 ? 0 : ::pread(file_, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  BootLog log;
  std::istringstream lines(text);
  constexpr std::string_view kFailed = "failed ";
  for (std::string line; std::getline(lines, line);) {
    log.started += line == "started" ? 1 : 0;
    log.imported_torch += line == "torch" ? 1 : 0;
    log.attached += line == "attached" ? 1 : 0;
    if (!line.starts_with(kFailed) || log.failures.size() >= kMaxFailures) continue;
    line.erase(0, kFailed.size());
    if (std::find(log.failures.begin(), log.failures.end(), line) == log.failures.end()) log.failures.push_back(line);
  }
  return log;
}

}  // namespace nanhunt::cli
