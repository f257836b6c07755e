// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/collect.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "src/autopsy/log_bytes.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepestFolder = 6;
constexpr std::size_t kMostFiles = 10'000;
constexpr std::size_t kLargestFile = 128u << 20;
constexpr std::size_t kMostBytes = 512u << 20;  // of all files together
constexpr const char* kPacked = "it is compressed: unpack it first";

std::size_t add_source(std::string_view name, std::string_view format, Evidence& into) {
  into.sources.push_back({std::string(name), std::string(format), ""});
  return into.sources.size() - 1;
}

// 400 of "checkpoint-400", "epoch=3-step=400.ckpt", "step_400.pt".
std::optional<std::uint64_t> step_in(std::string_view name) {
  for (const std::string_view word :
       {"step=", "step_", "step-", "step", "checkpoint-", "checkpoint_", "ckpt-", "ckpt_", "iter_", "model_", "model-", "state-", "state_"}) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos) continue;
    std::uint64_t step = 0;
    const char* begin = name.data() + at + word.size();
    const char* const end = name.data() + name.size();
    auto [rest, error] = std::from_chars(begin, end, step);
    if (error != std::errc()) continue;
    // Of epoch and step the last: "checkpoint_1_300.pt".
    while (rest != end && (*rest == '_' || *rest == '-')) {
      const auto [further, failed] = std::from_chars(rest + 1, end, step);
      if (failed != std::errc()) break;
      rest = further;
    }
    return step;
  }
  return std::nullopt;
}

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

void note_checkpoint(std::string_view path, bool is_folder, Evidence& into) {
  const std::string_view name = file_name_of(path);
  const bool file =
      name.ends_with(".ckpt") || name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".safetensors");
  const bool folder = name.starts_with("checkpoint-") || name.starts_with("checkpoint_") || name.starts_with("iter_") ||
                      name.starts_with("step_") || name.starts_with("global_step");
  const auto step = step_in(name);
  if (!step || !(is_folder ? folder : file) || into.checkpoints.size() >= 1000) return;
  // One shard of several, or what lies beside the weights, is no checkpoint; nor is a file of one.
  for (const std::string_view other : {"rng_state", "optimizer", "scheduler", "scaler"})
    if (name.starts_with(other)) return;
  const bool within = std::any_of(into.checkpoints.begin(), into.checkpoints.end(), [&](const Checkpoint& one) {
    return path.size() > one.path.size() && path.starts_with(one.path) && path[one.path.size()] == '/';
  });
  if (within || name.find("-of-") != std::string_view::npos) return;
  Checkpoint one;
  one.path = path;
  one.step = *step;
  into.checkpoints.push_back(std::move(one));
}

struct Found {
  std::string path;  // below the folder
  bool is_folder = false;
};

// Everything below a folder, in the order of its paths.
std::vector<Found> walk(const std::string& folder, Evidence& into) {
  std::vector<Found> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_symlink(ignored)) {
      at.disable_recursion_pending();
      continue;
    }
    if (at.depth() >= kDeepestFolder) at.disable_recursion_pending();
    const bool is_folder = at->is_directory(ignored);
    if (!is_folder && !at->is_regular_file(ignored)) continue;
    if (++into.files_seen > kMostFiles) {
      into.cut = true;
      break;
    }
    found.push_back({at->path().lexically_relative(folder).string(), is_folder});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
  return found;
}

void judge_checkpoints(Evidence& evidence) {
  for (Checkpoint& checkpoint : evidence.checkpoints) {
    const std::string state = checkpoint.path + "/trainer_state.json";
    for (std::size_t source = 0; source < evidence.sources.size(); ++source) {
      if (evidence.sources[source].path != state) continue;
      for (const Series& series : evidence.series) {
        if (series.source != source || series.quantity > Quantity::kGradNorm) continue;
        for (const Point& point : series.points) checkpoint.has_bad_number |= !is_finite(point.value);
      }
    }
  }
}

// Where the parts of one log lie: the folder of TensorBoard's files, the one around W&B's runs.
std::string group_of(const Source& source) {
  if (source.format == "TensorBoard") return std::string("TensorBoard ").append(folder_of(source.path));
  if (source.format == "W&B") return std::string("W&B ").append(folder_of(folder_of(source.path)));
  return {};
}

// Whether a part goes on where the whole was; one that begins at the same step is another run in the same folder.
bool goes_on(const Series& whole, const Series& part) {
  return !whole.points.empty() && !part.points.empty() && part.points.front().at > whole.points.front().at;
}

void append_series(Series& whole, const Series& part) {
  const std::size_t before = whole.points.size();
  whole.restarts.push_back(before);
  for (const std::size_t restart : part.restarts) whole.restarts.push_back(before + restart);
  whole.points.insert(whole.points.end(), part.points.begin(), part.points.end());
}

// Whether a reader would read it, were it unpacked: "metrics.csv.gz".
bool is_packed_log(std::string_view path) {
  for (const std::string_view end : {".gz", ".zst", ".xz", ".bz2", ".zip"}) {
    if (path.ends_with(end)) return find_reader(path.substr(0, path.size() - end.size())) != nullptr;
  }
  return false;
}

void note_cut(Evidence& into) {
  EvidenceBuilder(into, into.sources.size() - 1)
      .set_damage("it was read in part: it, or all files together, are too large");
}

Keep keep_of(const Reader* reader) { return reader == nullptr || reader->by_lines ? Keep::kBothEnds : Keep::kStart; }

}  // namespace

bool add_file(std::string bytes, std::string_view name, Evidence& into) {
  const Reader* reader = find_reader(name);
  if (reader == nullptr) return false;
  EvidenceBuilder builder(into, add_source(name, reader->format, into));
  reader->read(reader->by_lines ? as_utf8(std::move(bytes)) : bytes, name, builder);
  return true;
}

void add_text(std::string text, std::string_view name, Evidence& into) {
  EvidenceBuilder builder(into, add_source(name, "text", into));
  read_text_log(as_utf8(std::move(text)), name, builder);
}

Status add_text_file(const std::string& path, Evidence& into) {
  auto text = read_log_file(path, true, kLargestFile, Keep::kBothEnds);
  if (!text) return text.status();
  add_text(std::move(text->bytes), path, into);
  if (text->cut) note_cut(into);
  return Status::ok();
}

Status add_stdin(Evidence& into) {
  auto text = read_log_stdin(kLargestFile);
  if (!text) return text.status();
  add_text(std::move(text->bytes), "stdin", into);
  if (text->cut) note_cut(into);
  return Status::ok();
}

void join_series(Evidence& evidence) {
  judge_checkpoints(evidence);
  std::vector<Series> joined;
  std::vector<std::string> groups;
  for (Series& series : evidence.series) {
    const std::string group = group_of(evidence.sources[series.source]);
    std::size_t same = joined.size();
    for (std::size_t i = 0; !group.empty() && i < joined.size(); ++i) {
      const Series& other = joined[i];
      if (groups[i] == group && other.name == series.name && other.unit == series.unit &&
          other.quantity == series.quantity && goes_on(other, series)) {
        same = i;
      }
    }
    if (same != joined.size()) {
      append_series(joined[same], series);
      continue;
    }
    joined.push_back(std::move(series));
    groups.push_back(group);
  }
  evidence.series = std::move(joined);
}

Result<Evidence> collect_evidence(const std::string& place) {
  Evidence out;
  std::error_code error;
  if (!fs::is_directory(place, error)) {
    const std::string_view name = file_name_of(place);
    const Reader* reader = find_reader(name);
    out.files_seen = 1;
    if (is_packed_log(name)) {
      EvidenceBuilder(out, add_source(name, "", out)).set_damage(kPacked);
      return out;
    }
    auto file = read_log_file(place, true, kLargestFile, keep_of(reader));
    if (!file) return file.status();
    if (reader == nullptr) {
      add_text(std::move(file->bytes), name, out);
    } else {
      add_file(std::move(file->bytes), name, out);
    }
    if (file->cut) note_cut(out);
    return out;
  }
  out.place = place;
  std::size_t left = kMostBytes;
  for (const Found& found : walk(place, out)) {
    note_checkpoint(found.path, found.is_folder, out);
    if (!found.is_folder && is_packed_log(found.path))
      EvidenceBuilder(out, add_source(found.path, "", out)).set_damage(kPacked);
    const Reader* reader = find_reader(found.path);
    if (found.is_folder || reader == nullptr) continue;
    auto file = read_log_file(place + "/" + found.path, false, std::min(left, kLargestFile), keep_of(reader));
    if (!file) {
      EvidenceBuilder(out, add_source(found.path, "", out)).set_damage(file.status().message());
      continue;
    }
    left -= file->bytes.size();
    const bool cut = file->cut;
    add_file(std::move(file->bytes), found.path, out);
    if (cut) note_cut(out);
  }
  return out;
}

}  // namespace nanhunt::autopsy
