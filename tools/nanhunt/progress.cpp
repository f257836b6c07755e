// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/progress.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace nanhunt::cli {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

Progress::Progress(std::string what, std::uint64_t total)
    : what_(std::move(what)), total_(total), enabled_(stderr_is_terminal()) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::uint64_t done, const std::string& note) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - last_ < kInterval) return;
  last_ = now;
  shown_ = true;
  std::fprintf(stderr, "\r\x1b[K%s  %llu/%llu  %s", what_.c_str(), static_cast<unsigned long long>(done),
               static_cast<unsigned long long>(total_), note.c_str());
  std::fflush(stderr);
}

}  // namespace nanhunt::cli
