// SPDX-License-Identifier: Apache-2.0
// Finding attempts below a path, and reading one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "nanhunt/trace.h"
#include "src/core/text.h"
#include "src/trace/attempt_reader.h"
#include "src/trace/run/run_info.h"
#include "src/trace/segments/segment.h"

namespace nanhunt {
namespace trace {
namespace {

namespace fs = std::filesystem;

struct Numbered {
  std::uint32_t number = 0;
  std::string path;
};

Status cannot_list(const std::string& path, const std::error_code& error) {
  return {StatusCode::kUnreadable,
          fmt::format("cannot list '{}': {}. Check the path and its permissions.", printable(path), error.message())};
}

// The entries whose names are numbers in the writer's spelling, in order. Links are left out unless wanted.
Status list_numbered(const std::string& folder, std::optional<std::uint32_t> (*parse)(std::string_view), bool folders,
                     std::vector<Numbered>& found) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto number = parse(name);
    if (!number) continue;
    std::error_code ignored;
    if (folders && entry->symlink_status(ignored).type() != fs::file_type::directory) continue;
    found.push_back({*number, folder + "/" + name});
  }
  if (error) return cannot_list(folder, error);
  std::ranges::sort(found, {}, &Numbered::number);
  return Status::ok();
}

// The folders' names decide where they hold a number: a copied or damaged run.json must not make one rank hide another.
AttemptTrace open_attempt(const std::string& dir, const std::string& info_folder, std::optional<std::uint32_t> rank,
                          std::optional<std::uint32_t> attempt) {
  AttemptTrace found;
  found.dir = dir;
  found.has_info = read_run_info(info_folder, found.info);
  if (rank) found.info.rank = *rank;
  if (attempt) found.info.attempt = *attempt;
  return found;
}

AttemptTrace attempt_in(const std::string& dir, const fs::path& folder) {
  std::error_code ignored;
  const fs::path full = fs::weakly_canonical(folder, ignored);
  return open_attempt(dir, folder.empty() ? "." : folder.string(),
                      parse_rank_folder_name(full.parent_path().filename().string()),
                      parse_attempt_folder_name(full.filename().string()));
}

Status attempts_of_rank(const std::string& folder, std::optional<std::uint32_t> rank, std::vector<AttemptTrace>& out) {
  std::vector<Numbered> attempts;
  if (Status status = list_numbered(folder, parse_attempt_folder_name, /*folders=*/true, attempts); !status)
    return status;
  for (const Numbered& attempt : attempts) {
    out.push_back(open_attempt(attempt.path, attempt.path, rank, attempt.number));
  }
  return Status::ok();
}

}  // namespace
}  // namespace trace

Result<std::vector<AttemptTrace>> find_attempts(const std::string& path) {
  using namespace trace;
  std::error_code error;
  std::string root = path;
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  const fs::file_status status = fs::status(root, error);
  if (status.type() == fs::file_type::not_found || root.empty()) {
    return Status{
        StatusCode::kNotFound,
        fmt::format("'{}' does not exist. Name a run folder, an attempt folder or a .nht file; `nanhunt check` and "
                    "`nanhunt diff` take checkpoints as well.",
                    printable(path))};
  }
  if (error) return cannot_list(root, error);
  std::vector<AttemptTrace> found;
  if (status.type() == fs::file_type::regular) {
    found.push_back(attempt_in(root, fs::path(root).parent_path()));
    return found;
  }
  if (status.type() != fs::file_type::directory) {
    return Status{
        StatusCode::kUnreadable,
        fmt::format("'{}' is neither a folder nor a file. Name a run folder or a .nht file.", printable(path))};
  }
  std::vector<Numbered> segments, ranks;
  if (Status listed = list_numbered(root, parse_segment_name, /*folders=*/false, segments); !listed) return listed;
  if (!segments.empty() || fs::is_regular_file(fs::symlink_status(root + "/run.json", error))) {
    found.push_back(attempt_in(root, root));
    return found;
  }
  if (Status listed = list_numbered(root, parse_rank_folder_name, /*folders=*/true, ranks); !listed) return listed;
  Status first_failure;
  std::size_t failures = 0;
  for (const Numbered& rank : ranks) {
    const Status listed = attempts_of_rank(rank.path, rank.number, found);
    if (listed) continue;
    // Named, so that whoever reads it is told why that fails; the other ranks may still tell.
    AttemptTrace unreadable;
    unreadable.dir = rank.path;
    unreadable.info.rank = rank.number;
    found.push_back(std::move(unreadable));
    if (failures++ == 0) first_failure = listed;
  }
  if (failures > 0 && failures == found.size()) return first_failure;
  if (ranks.empty()) {  // perhaps a rank's folder
    const std::string name = fs::weakly_canonical(root, error).filename().string();
    if (Status listed = attempts_of_rank(root, parse_rank_folder_name(name), found); !listed) return listed;
  }
  if (found.empty()) {
    const std::string word = shell_word(printable(path));
    return Status{StatusCode::kNotFound,
                  fmt::format("no trace in '{}': expected {} below it. Of a run that was not recorded `nanhunt autopsy "
                              "{}` reads the logs and the checkpoints.",
                              printable(path), "rank-00000/attempt-0/000000.nht", word)};
  }
  return found;
}

Status read_attempt(const AttemptTrace& attempt, const std::function<void(const RecordBatch&)>& on_batch,
                    TraceHealth& health) {
  using namespace trace;
  health = {};
  std::error_code error;
  const fs::file_status status = fs::status(attempt.dir, error);
  if (status.type() == fs::file_type::not_found) {
    return {StatusCode::kNotFound, fmt::format("'{}' does not exist. Check the path.", printable(attempt.dir))};
  }
  AttemptReader reader(on_batch, health);
  if (status.type() != fs::file_type::directory) {
    auto file = InputFile::open(attempt.dir, /*follow_links=*/true);
    if (!file) return file.status();
    reader.read_segment(*file, fs::path(attempt.dir).filename().string(), /*alone=*/true);
    return reader.finish(attempt.dir);
  }
  std::vector<Numbered> segments;
  if (Status listed = list_numbered(attempt.dir, parse_segment_name, /*folders=*/false, segments); !listed)
    return listed;
  if (segments.empty()) {
    return {StatusCode::kNotFound,
            fmt::format("'{}' holds no .nht file: nothing was recorded.", printable(attempt.dir))};
  }
  for (const Numbered& segment : segments) {
    const std::string name = segment_name(segment.number);
    auto file = InputFile::open(segment.path, /*follow_links=*/false);
    if (file) {
      reader.read_segment(*file, name, /*alone=*/false);
    } else if (file.status().code() == StatusCode::kNotFound) {
      reader.miss_vanished_segment(name);
    } else {
      reader.skip_segment(name, file.status());
    }
  }
  return reader.finish(attempt.dir);
}

}  // namespace nanhunt
