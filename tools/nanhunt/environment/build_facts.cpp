// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/environment/build_facts.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <vector>

#include "src/core/version.h"
#include "tools/nanhunt/environment/python_package.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

// A release with its numbers, by which it is sorted: "2.10.0" is after "2.9.1".
using Release = std::pair<std::vector<long>, std::string>;

// Of "2.10.0 abi 1".
Release release_of(const std::string& listed) {
  const std::string name = listed.substr(0, listed.find(' '));
  std::vector<long> numbers;
  for (const char* at = name.c_str(); *at != '\0';) {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);
    if (end == at) break;
    numbers.push_back(number);
    at = *end == '.' ? end + 1 : end;
  }
  return {numbers, name};
}

std::set<Release> releases_in(const std::filesystem::path& folder) {
  std::set<Release> found;
  std::ifstream file(folder / "taps.json");
  const json index = json::parse(file, nullptr, false);
  if (!index.is_object()) return found;
  for (const auto& [name, tap] : index.items()) {
    std::error_code error;
    if (!tap.is_object() || !tap.contains("releases") || !tap["releases"].is_array()) continue;
    if (!std::filesystem::is_regular_file(folder / name, error)) continue;
    for (const json& release : tap["releases"]) {
      if (release.is_string()) found.insert(release_of(release.get<std::string>()));
    }
  }
  return found;
}

}  // namespace

std::string taps_text(const std::string& folder) {
  const std::set<Release> releases = releases_in(folder);
  if (releases.empty()) return "no taps: compiled at first use";
  if (releases.size() == 1) return "a tap for PyTorch " + releases.begin()->second;
  return "taps for PyTorch " + releases.begin()->second + " to " + releases.rbegin()->second + " (" +
         std::to_string(releases.size()) + " releases)";
}

std::string version_text() {
  const std::string boot = find_boot_dir();
  const std::string taps =
      boot.empty() ? "no Python package" : taps_text((std::filesystem::path(boot).parent_path() / "lib").string());
  return "nanhunt " + std::string(nanhunt::version()) + "\ncommit " NANHUNT_COMMIT " · " + taps;
}

}  // namespace nanhunt::cli
