// SPDX-License-Identifier: Apache-2.0
#include "src/trace/run/process_run_info.h"

#include <unistd.h>

#include <array>
#include <ctime>

#include "src/core/version.h"

namespace nanhunt {
namespace {

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

}  // namespace

RunInfo make_run_info() {
  RunInfo info;
  info.nanhunt_version = version();
  info.started = now_utc();
  info.host = host_name();
  info.pid = ::getpid();
  return info;
}

}  // namespace nanhunt
