// SPDX-License-Identifier: Apache-2.0
// The folders that `nanhunt mcp` reads: nothing outside of them is opened for a client.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "nanhunt/status.h"

namespace nanhunt::cli::mcp {

class Roots {
 public:
  // Those that exist; none given: the working directory.
  static Result<Roots> open(const std::vector<std::string>& folders);

  // A path as a client gives it: absolute, or below the first root. Links are followed before it is judged.
  Result<std::string> existing(const std::string& path) const;
  // One that is not there yet, in a folder that is.
  Result<std::string> fresh(const std::string& path) const;

  // Folders below `folder` (empty: all roots) in which runs were recorded, the newest first.
  Result<nlohmann::json> list_runs(const std::string& folder, std::size_t most) const;

 private:
  bool holds(const std::filesystem::path& path) const;

  std::vector<std::filesystem::path> roots_;
};

}  // namespace nanhunt::cli::mcp
