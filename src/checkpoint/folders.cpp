// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/folders.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "src/checkpoint/distributed.h"
#include "src/checkpoint/read_file.h"

namespace nanhunt::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnding = ".index.json";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 27;
constexpr std::size_t kMaxEntries = 100'000;  // of a folder
constexpr int kMaxFolderDepth = 2;            // folders within the folder of a checkpoint
constexpr std::size_t kMaxParts = 64;         // of a folder
constexpr std::string_view kPipelineIndex = "model_index.json";  // of diffusers: each folder beside it is a part

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
    if (at->is_directory(ignored)) {
      if (!name.starts_with('.')) out.folders.push_back(name);  // .git, .cache
    } else if (at->is_regular_file(ignored)) {
      out.files.push_back(name);
    }
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

bool has_file(const Listing& listing, std::string_view name) {
  return std::binary_search(listing.files.begin(), listing.files.end(), name, std::less<>());
}

std::vector<std::string> checkpoint_files(const Listing& listing) {
  std::vector<std::string> out;
  for (const std::string& name : listing.files) {
    const bool is_of_openvino = name.ends_with(".bin") && has_file(listing, name.substr(0, name.size() - 4) + ".xml");
    if (has_checkpoint_ending(name) && !is_of_openvino) out.push_back(name);
  }
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

// Whether a checkpoint lies in the folder, or in one of its folders.
bool holds_checkpoint(const std::string& path, int depth) {
  const Listing listing = list_folder(path);
  if (folder_kind(listing) != FolderKind::kNone) return true;
  if (depth >= kMaxFolderDepth) return false;
  const auto end = listing.folders.begin() + static_cast<std::ptrdiff_t>(std::min(listing.folders.size(), kMaxParts));
  return std::any_of(listing.folders.begin(), end,
                     [&](const std::string& name) { return holds_checkpoint(path + "/" + name, depth + 1); });
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

// The last name of a path, whichever way it is written: "out/checkpoint-200/", or "." within it.
std::string last_name_of(const std::string& path) {
  fs::path name = fs::path(path).filename();
  std::error_code error;
  if (name.empty() || name == "." || name == "..") name = fs::weakly_canonical(path, error).filename();
  return name.string();
}

// "checkpoint-200", "epoch=3", "0400": training saves one after another under such names. "text_encoder_2" is none.
bool is_name_of_series(const std::string& path) {
  static constexpr std::string_view kWords[] = {"checkpoint", "ckpt", "step", "epoch", "iter"};
  std::string name = last_name_of(path);
  if (number_in(name) < 0) return false;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return name.find_first_not_of("0123456789") == std::string::npos ||
         std::any_of(std::begin(kWords), std::end(kWords),
                     [&](auto word) { return name.find(word) != std::string::npos; });
}

// Whether the folders of one folder are a series: several numbers under such names. A state that was saved in parts has
// one number, the step's, or counts ranks: 0, 1, 2.
bool holds_series(const Listing& listing) {
  std::set<std::int64_t> named, plain;
  for (const std::string& name : listing.folders) {
    if (!is_name_of_series(name)) continue;
    (name.find_first_not_of("0123456789") == std::string::npos ? plain : named).insert(number_in(name));
  }
  const auto span = plain.empty() ? 0 : static_cast<std::uint64_t>(*plain.rbegin() - *plain.begin());
  return named.size() > 1 || (plain.size() > 1 && span >= plain.size());
}

// Which folders within `path` belong to the checkpoint there, by their names: unet/ and vae/ of a pipeline, or what
// several ranks saved beside a Trainer's state. Others are checkpoints of their own.
class PartNames {
 public:
  PartNames(const std::string& path, const Listing& listing)
      : pipeline_(has_file(listing, kPipelineIndex)),
        around_series_(holds_series(listing)),
        of_series_(is_name_of_series(path)),
        one_(folder_kind(listing) == FolderKind::kOne) {}

  bool is_part(const std::string& name) const {
    if (pipeline_ || number_in(name) < 0) return true;
    const bool numbered = is_name_of_series(name);
    if (numbered && around_series_) return false;  // whatever the name of the folder around them
    return of_series_ || (one_ && !numbered);
  }
  bool takes_unnumbered() const { return pipeline_ || one_; }

 private:
  bool pipeline_, around_series_, of_series_, one_;
};

// Those that hold a checkpoint: as many as are read, and one more where there are more.
std::vector<std::string> part_folders(const std::string& path, const Listing& listing) {
  std::vector<std::string> out;
  const PartNames names(path, listing);
  for (const std::string& name : listing.folders) {
    if (out.size() > kMaxParts) break;
    if (names.is_part(name) && holds_checkpoint(path + "/" + name, 1)) out.push_back(name);
  }
  return out;
}

// A folder without tensors of its own, around parts that each say what they are.
bool is_whole_of_parts(const std::string& path, const Listing& listing) {
  if (folder_kind(listing) != FolderKind::kNone) return false;
  const auto parts = part_folders(path, listing);
  if (has_file(listing, kPipelineIndex) || is_name_of_series(path)) return !parts.empty();
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& name) {
    const Listing part = list_folder(path + "/" + name);
    return has_file(part, "config.json") || has_file(part, ".metadata");
  });
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

// What was read well and what was not, over a folder and its parts.
struct Outcome {
  Status first_failure;
  std::size_t read_well = 0, failed = 0;

  void count(const Status& status, Checkpoint& out) {
    if (status) {
      ++read_well;
      return;
    }
    if (failed++ == 0) first_failure = status;
    if (failed <= 8) out.note(NoteKind::kDamaged, status.message());
  }
};

// `part`: where the folder lies within the checkpoint, empty for the checkpoint's own.
void read_folder_into(const std::string& path, const std::string& part, int depth, Checkpoint& out, Outcome& outcome) {
  const Listing listing = list_folder(path);
  const bool distributed = has_file(listing, ".metadata");
  const std::string prefix = part.empty() ? "" : part + ":";
  const std::vector<std::string> files = checkpoint_files(listing), parts = depth < kMaxFolderDepth
                                                                                ? part_folders(path, listing)
                                                                                : std::vector<std::string>();
  std::set<std::string> done;
  for (const std::string& name : listing.files)
    if (name.ends_with(kIndexEnding)) outcome.count(read_index(path, name, prefix, out, done), out);
  if (distributed) outcome.count(read_distributed(path, prefix, out), out);
  const bool several = files.size() - std::min(files.size(), done.size()) > 1 || !done.empty() || distributed ||
                       (part.empty() && !parts.empty());
  const std::string name_before = part.empty() ? "" : part + "/";
  for (const std::string& name : files) {
    if (done.count(name) != 0) continue;
    const bool listed_there = std::any_of(out.files.begin(), out.files.end(),
                                          [&](const Source& one) { return one.path == path + "/" + name; });
    if (!listed_there)
      outcome.count(read_file(path + "/" + name, several ? name_before + name + ":" : prefix, out), out);
  }
  if ((several && done.empty() && !distributed) || !parts.empty() || !part.empty()) out.format = "folder";
  for (std::size_t i = 0; i < std::min(parts.size(), kMaxParts); ++i)
    read_folder_into(path + "/" + parts[i], name_before + parts[i], depth + 1, out, outcome);
  if (!parts.empty()) out.format = "folder";
  if (parts.size() > kMaxParts)
    out.note(NoteKind::kNotRead,
             "Of the folders in '" + path + "' only the first " + std::to_string(kMaxParts) + " were read.");
}

Result<Checkpoint> read_folder(const std::string& path) {
  Checkpoint out;
  out.path = path;
  Outcome outcome;
  read_folder_into(path, "", 0, out, outcome);
  if (outcome.read_well > 0) return out;
  if (outcome.failed == 0) return Status(StatusCode::kNotFound, "'" + path + "' holds no checkpoint.");
  return outcome.first_failure;
}

// The checkpoints of a folder, newest first.
std::vector<std::string> find_in_folder(const std::string& path, int depth) {
  const Listing listing = list_folder(path);
  std::vector<std::tuple<std::int64_t, std::int64_t, std::string>> found;  // numbers, of a series within last
  const FolderKind kind = folder_kind(listing);
  if (kind == FolderKind::kFiles) {
    for (const std::string& name : checkpoint_files(listing)) found.emplace_back(number_in(name), 0, path + "/" + name);
  }
  const auto add = [&](const std::string& name) {
    const std::string folder = path + "/" + name;
    if (!holds_checkpoint(folder, 1)) return;
    const bool may_be_series = depth < kMaxFolderDepth && folder_kind(list_folder(folder)) == FolderKind::kNone;
    auto within = may_be_series ? find_in_folder(folder, depth + 1) : std::vector<std::string>();
    if (within.empty()) within.push_back(folder);
    for (std::size_t i = 0; i < within.size(); ++i)
      found.emplace_back(number_in(name), -static_cast<std::int64_t>(i), std::move(within[i]));
  };
  const PartNames names(path, listing);
  for (const std::string& name : listing.folders)
    if (!names.is_part(name)) add(name);
  // best/ beside a series. Nothing says when it was saved: it is not the newest, which decides.
  const bool beside_series = !found.empty() && !names.takes_unnumbered();
  for (const std::string& name : listing.folders)
    if (beside_series && number_in(name) < 0) add(name);
  if (found.empty() && is_whole_of_parts(path, listing)) found.emplace_back(0, 0, path);
  // A model saved beside its checkpoints was saved at the end.
  if (kind == FolderKind::kOne) found.emplace_back(std::numeric_limits<std::int64_t>::max(), 0, path);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return b < a; });
  std::vector<std::string> out;
  for (auto& one : found) out.push_back(std::move(std::get<std::string>(one)));
  return out;
}

}  // namespace

std::vector<std::string> find_checkpoints(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error))
    return file_kind(path) == FileKind::kNone ? std::vector<std::string>{} : std::vector<std::string>{path};
  if (!fs::is_directory(path, error)) return {};
  const std::size_t last = path.find_last_not_of('/');
  return find_in_folder(last == std::string::npos ? path : path.substr(0, last + 1), 0);
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
