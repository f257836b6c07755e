// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/checkpoints/checkpoint_place.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>

#include "nanhunt/trace.h"
#include "src/checkpoint/folders.h"
#include "src/core/text.h"
#include "tools/nanhunt/progress.h"

namespace nanhunt::cli {
namespace {

constexpr std::chrono::seconds kQuiet(2);

}  // namespace

std::vector<std::string> checkpoints_at(const std::string& path) {
  std::error_code error;
  if (path.ends_with(".nht")) return {};
  if (std::filesystem::is_directory(path, error)) {
    const auto attempts = find_attempts(path);
    if (attempts && !attempts->empty()) return {};
  }
  return checkpoint::find_checkpoints(path);
}

std::function<void(std::uint64_t, std::uint64_t)> checkpoint_progress(const std::string& path) {
  const auto begin = std::chrono::steady_clock::now();
  auto shown = std::make_shared<std::unique_ptr<Progress>>();
  return [begin, shown, path](std::uint64_t done, std::uint64_t total) {
    if (std::chrono::steady_clock::now() - begin < kQuiet) return;
    if (!*shown) *shown = std::make_unique<Progress>("reading", total >> 20);
    (*shown)->update(done >> 20, "MiB of " + printable(path));
  };
}

}  // namespace nanhunt::cli
