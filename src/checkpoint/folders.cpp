// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/folders.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "src/checkpoint/distributed.h"
#include "src/checkpoint/read_file.h"

namespace nanhunt::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnding = ".index.json";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 27;
constexpr std::size_t kMaxEntries = 100'000;  // of a folder

// Files that are beside the model's in one checkpoint: where one of them is, all files of the folder are one.
constexpr std::string_view kCompanions[] = {"trainer_state.json", "training_args.bin",  "config.json",   "optimizer.pt",
                                            "optimizer.bin",      "scheduler.pt",       "scheduler.bin", "scaler.pt",
                                            "rng_state.pth",      "adapter_config.json"};
constexpr std::string_view kCompanionEndings[] = {"_model_states.pt", "_optim_states.pt", ".metadata", kIndexEnding};

struct Listing {
  std::vector<std::string> files, folders;  // names, sorted
};

Listing list_folder(const std::string& path) {
  Listing out;
  std::error_code error;
  std::size_t seen = 0;
  for (fs::directory_iterator at(path, error), end; !error && at != end && seen < kMaxEntries;
       at.increment(error), ++seen) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (at->is_directory(ignored))
      out.folders.push_back(name);
    else if (at->is_regular_file(ignored))
      out.files.push_back(name);
  }
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.folders.begin(), out.folders.end());
  return out;
}

bool is_shard(const std::string& name) { return name.find("-of-") != std::string::npos; }

bool is_companion(const std::string& name) {
  return std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions) || is_shard(name) ||
         std::any_of(std::begin(kCompanionEndings), std::end(kCompanionEndings),
                     [&](auto e) { return name.ends_with(e); });
}

std::vector<std::string> checkpoint_files(const Listing& listing) {
  std::vector<std::string> out;
  std::copy_if(listing.files.begin(), listing.files.end(), std::back_inserter(out), has_checkpoint_ending);
  return out;
}

enum class FolderKind : std::uint8_t { kNone, kOne, kFiles };
FolderKind folder_kind(const Listing& listing) {
  if (std::find(listing.files.begin(), listing.files.end(), ".metadata") != listing.files.end())
    return FolderKind::kOne;
  const bool index = std::any_of(listing.files.begin(), listing.files.end(),
                                 [](const std::string& n) { return n.ends_with(kIndexEnding); });
  const auto files = checkpoint_files(listing);
  if (files.empty()) return index ? FolderKind::kOne : FolderKind::kNone;
  if (files.size() == 1 || std::any_of(listing.files.begin(), listing.files.end(), is_companion))
    return FolderKind::kOne;
  return FolderKind::kFiles;
}

// "step=400" before the last number of the name; -1 without a number, and highest where the name says it is the last.
std::int64_t number_in(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  if (has_checkpoint_ending(name)) name.resize(name.rfind('.'));
  if (name.starts_with("last") || name.starts_with("latest") || name.starts_with("final"))
    return std::numeric_limits<std::int64_t>::max();
  const auto digits_from = [&name](std::size_t at) {
    std::int64_t value = -1;
    std::from_chars(name.data() + at, name.data() + name.size(), value);
    return value;
  };
  if (const std::size_t step = name.rfind("step"); step != std::string::npos) {
    const std::size_t digit = name.find_first_of("0123456789", step);
    if (digit != std::string::npos && digit <= step + 5) return digits_from(digit);
  }
  const std::size_t last = name.find_last_of("0123456789");
  if (last == std::string::npos) return -1;
  std::size_t first = last;
  while (first > 0 && name[first - 1] >= '0' && name[first - 1] <= '9') --first;
  return digits_from(first);
}

Status read_index(const std::string& folder, const std::string& name, const std::string& prefix, Checkpoint& out,
                  std::set<std::string>& done) {
  const std::string path = folder + "/" + name;
  const auto file = FileBytes::open(path);
  if (!file) return file.status();
  const auto damaged = [&path] {
    return Status(StatusCode::kUnreadable, "'" + path + "' is no index of shards that can be read.");
  };
  if (file->size() > kMaxIndexBytes) return damaged();
  const std::string text = file->text(0, static_cast<std::size_t>(file->size()));
  bool too_deep = false;
  const auto index = nlohmann::json::parse(
      text,
      [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        if (depth > 8) too_deep = true;
        return depth <= 8;
      },
      false);
  const auto map = index.is_object() && !too_deep ? index.find("weight_map") : index.end();
  if (too_deep || !index.is_object() || map == index.end() || !map->is_object()) return damaged();
  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, shard] : map->items())
    if (shard.is_string()) tensors_of[shard.get<std::string>()].push_back(prefix + tensor);
  for (const auto& [shard, names] : tensors_of) {
    const bool inside = shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos && !shard.empty();
    if (!inside || !done.insert(shard).second) continue;
    const std::size_t before = out.tensors.size();
    const Status read = read_file(folder + "/" + shard, prefix, out);
    if (!read) {
      out.note(NoteKind::kDamaged,
               (read.code() == StatusCode::kNotFound ? "The shard '" + shard + "' is missing: "
                                                     : "The shard '" + shard + "' cannot be read: ") +
                   std::to_string(names.size()) + " tensors were not judged. Copy it again.");
    }
    std::set<std::string> there;
    for (std::size_t i = before; i < out.tensors.size(); ++i) there.insert(out.tensors[i].name);
    for (const std::string& one : names) {
      if (there.count(one) != 0) continue;
      Tensor tensor;
      tensor.name = one;
      tensor.problem = read ? "its shard does not hold it" : "its shard is missing";
      tensor.damaged = true;
      out.tensors.push_back(std::move(tensor));
    }
  }
  out.format = "sharded";
  return {};
}

Result<Checkpoint> read_folder(const std::string& path) {
  const Listing listing = list_folder(path);
  Checkpoint out;
  out.path = path;
  const bool distributed = std::find(listing.files.begin(), listing.files.end(), ".metadata") != listing.files.end();
  Status first_failure;
  std::size_t read_well = 0, failed = 0;
  const auto count = [&](const Status& status) {
    if (status) {
      ++read_well;
      return;
    }
    if (failed++ == 0) first_failure = status;
    if (failed <= 8) out.note(NoteKind::kDamaged, status.message());
  };
  std::vector<std::string> files = checkpoint_files(listing);
  std::set<std::string> done;
  for (const std::string& name : listing.files)
    if (name.ends_with(kIndexEnding)) count(read_index(path, name, "", out, done));
  if (distributed) count(read_distributed(path, "", out));
  const bool several = files.size() - std::min(files.size(), done.size()) > 1 || !done.empty() || distributed;
  for (const std::string& name : files) {
    if (done.count(name) != 0) continue;
    const bool listed_there = std::any_of(out.files.begin(), out.files.end(),
                                          [&](const Source& one) { return one.path == path + "/" + name; });
    if (!listed_there) count(read_file(path + "/" + name, several ? name + ":" : "", out));
  }
  if (read_well == 0) {
    if (failed == 0) return Status(StatusCode::kNotFound, "'" + path + "' holds no checkpoint.");
    return first_failure;
  }
  if (several && done.empty() && !distributed) out.format = "folder";
  return out;
}

}  // namespace

std::vector<std::string> find_checkpoints(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error))
    return file_kind(path) == FileKind::kNone ? std::vector<std::string>{} : std::vector<std::string>{path};
  if (!fs::is_directory(path, error)) return {};
  const Listing listing = list_folder(path);
  std::vector<std::pair<std::int64_t, std::string>> found;
  const FolderKind kind = folder_kind(listing);
  if (kind == FolderKind::kFiles) {
    for (const std::string& name : checkpoint_files(listing)) found.emplace_back(number_in(name), path + "/" + name);
  }
  for (const std::string& name : listing.folders) {
    const std::string folder = path + "/" + name;
    if (number_in(name) < 0) continue;
    if (folder_kind(list_folder(folder)) != FolderKind::kNone) found.emplace_back(number_in(name), folder);
  }
  // A model saved beside its checkpoints was saved at the end.
  if (kind == FolderKind::kOne) found.emplace_back(std::numeric_limits<std::int64_t>::max(), path);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return b < a; });
  std::vector<std::string> out;
  for (auto& [number, one] : found) out.push_back(std::move(one));
  return out;
}

Result<Checkpoint> read_checkpoint(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return read_folder(path);
  Checkpoint out;
  out.path = path;
  if (Status read = read_file(path, "", out); !read) return read;
  return out;
}

}  // namespace nanhunt::checkpoint
