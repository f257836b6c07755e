// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/mcp/roots.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "reports/json/json_values.h"

namespace nanhunt::cli::mcp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMostDepth = 5;
constexpr std::size_t kMostEntries = 20000;
constexpr std::string_view kNoRun =
    "No recorded run is here. Of a run that was not watched `autopsy` reads the logs, and `check` judges its "
    "checkpoints: each takes the path of a folder or a file. "
    "To record one, in a shell: nanhunt run --out run -- python train.py";

struct FoundRun {
  fs::path path;
  fs::file_time_type changed;
  std::uint64_t ranks = 0, attempts = 0;
};

// A run folder holds rank-00000/attempt-0/.
bool count_ranks(const fs::path& folder, FoundRun& run) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with("rank-") || !at->is_directory(error)) continue;
    std::uint64_t attempts = 0;
    std::error_code inner;
    for (fs::directory_iterator one(at->path(), inner); !inner && one != end; one.increment(inner)) {
      if (!one->path().filename().string().starts_with("attempt-")) continue;
      ++attempts;
      run.changed = std::max(run.changed, fs::last_write_time(one->path(), inner));
    }
    if (attempts == 0) continue;
    ++run.ranks;
    run.attempts += attempts;
  }
  run.path = folder;
  return run.ranks > 0;
}

Status no_such(const std::string& path, std::string_view why) {
  return {StatusCode::kNotFound, "'" + path + "' " + std::string(why)};
}

}  // namespace

Result<Roots> Roots::open(const std::vector<std::string>& folders) {
  Roots roots;
  for (const std::string& folder : folders.empty() ? std::vector<std::string>{"."} : folders) {
    std::error_code error;
    fs::path real = fs::canonical(folder, error);
    if (error || !fs::is_directory(real, error)) return no_such(folder, "is no folder. Name one with --root.");
    roots.roots_.push_back(std::move(real));
  }
  return roots;
}

bool Roots::holds(const fs::path& path) const {
  return std::any_of(roots_.begin(), roots_.end(), [&](const fs::path& root) {
    const auto [at_root, at_path] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
    static_cast<void>(at_path);
    return at_root == root.end();
  });
}

Result<std::string> Roots::existing(const std::string& path) const {
  std::error_code error;
  // What is outside is refused before it is asked for: whether it is there is nobody's business.
  const fs::path whole = fs::weakly_canonical(roots_.front() / path, error);
  if (error || path.empty() || path.find('\0') != std::string::npos || !holds(whole))
    return no_such(path, "is outside of the folders that this server reads. `list_runs` names runs; --root adds a folder.");
  if (!fs::exists(whole, error)) return no_such(path, "does not exist. `list_runs` names the runs that are there.");
  return whole.string();
}

Result<std::string> Roots::fresh(const std::string& path) const {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(roots_.front() / path, error);
  if (error || path.empty() || path.find('\0') != std::string::npos || !holds(whole))
    return no_such(path, "is outside of the folders that this server writes to.");
  if (fs::exists(whole, error)) return Status(StatusCode::kUsage, "'" + path + "' exists. Name a new folder.");
  if (!fs::is_directory(whole.parent_path(), error)) return no_such(path, "would be in a folder that does not exist.");
  return whole.string();
}

Result<json> Roots::list_runs(const std::string& folder, std::size_t most) const {
  std::vector<fs::path> starts = roots_;
  if (!folder.empty()) {
    auto one = existing(folder);
    if (!one) return one.status();
    starts = {*one};
  }
  std::vector<FoundRun> found;
  std::size_t entries = 0;
  const auto take = [&](const fs::path& path) {
    FoundRun run;
    if (!count_ranks(path, run)) return false;
    found.push_back(std::move(run));
    return true;
  };
  for (const fs::path& start : starts) {
    if (take(start)) continue;
    std::error_code error;
    // Links are not followed: what they name may be outside.
    fs::recursive_directory_iterator at(start, fs::directory_options::skip_permission_denied, error);
    for (const fs::recursive_directory_iterator end; !error && at != end && entries < kMostEntries; at.increment(error)) {
      ++entries;
      std::error_code ignored;
      if (at->is_symlink(ignored) || !at->is_directory(ignored)) continue;
      const std::string name = at->path().filename().string();
      if (name.starts_with(".") || at.depth() >= kMostDepth || take(at->path())) at.disable_recursion_pending();
    }
  }
  std::sort(found.begin(), found.end(), [](const FoundRun& a, const FoundRun& b) {
    return a.changed != b.changed ? a.changed > b.changed : a.path < b.path;
  });
  json runs = json::array();
  for (const FoundRun& run : found) {
    if (runs.size() == most) break;
    const fs::path name = holds(run.path) ? run.path.lexically_relative(roots_.front()) : run.path;
    const bool below = !name.empty() && *name.begin() != "..";
    std::error_code ignored;
    runs.push_back({{"path", reports::json_text(below ? name.string() : run.path.string())},
                    {"ranks", reports::json_count(run.ranks)},
                    {"attempts", reports::json_count(run.attempts)},
                    {"has_report", fs::exists(run.path / "report.json", ignored)}});
  }
  const std::size_t omitted = found.size() - runs.size();
  json list = {{"runs", std::move(runs)}, {"omitted", omitted}, {"searched_all", entries < kMostEntries}};
  if (found.empty()) list["next"] = kNoRun;
  return list;
}

}  // namespace nanhunt::cli::mcp
