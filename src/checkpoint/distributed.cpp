// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/distributed.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "src/checkpoint/pickle/pickle.h"
#include "src/checkpoint/read_file.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::checkpoint {
namespace {

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{1} << 28;
constexpr std::size_t kMaxNamed = 8;  // missing files and parts that are named one by one
// Objects may be shared by all parts, so little of each is looked at: its states, and attributes in one of them.
constexpr std::size_t kMaxAttributes = 16, kMaxStates = 4;
constexpr std::size_t kMaxNameBytes = 1024, kMaxFileNameBytes = 4096;
constexpr std::size_t kMaxPartsBytes = std::size_t{1} << 29;

// One part of a tensor, or a value: where it lies.
struct Part {
  std::string name, file;
  std::vector<std::int64_t> origin;
  std::uint64_t at = 0, length = 0;
};

// What the metadata says of a tensor as a whole.
struct Wanted {
  std::size_t parts = 1;
  std::vector<std::int64_t> sizes;
};

class Metadata {
 public:
  explicit Metadata(const Pickle& pickle) : pickle_(pickle) {}

  // The value of an attribute: in a state that was set on the object, or in its arguments by position.
  const PickleValue* attribute(const PickleValue& object, std::string_view name, std::size_t position) const {
    if (object.kind != PickleKind::kObject) return nullptr;
    for (std::size_t i = 2; i < std::min(object.items.size(), 2 + kMaxStates); ++i)
      if (const PickleValue* found = entry(pickle_.at(object.items[i]), name)) return found;
    const PickleValue& given = pickle_.at(object.items[1]);
    // copyreg.__newobj__ and NEWOBJ give the arguments of __new__ alone: a dataclass has none.
    return position < given.items.size() ? &pickle_.at(given.items[position]) : nullptr;
  }
  const PickleValue* entry(const PickleValue& dict, std::string_view name) const {
    if (dict.kind != PickleKind::kDict) return nullptr;
    for (std::size_t i = 0; i + 1 < std::min(dict.items.size(), 2 * kMaxAttributes); i += 2) {
      const PickleValue& key = pickle_.at(dict.items[i]);
      if (key.kind == PickleKind::kString && key.text == name) return &pickle_.at(dict.items[i + 1]);
    }
    return nullptr;
  }
  std::optional<std::uint64_t> number(const PickleValue* value) const {
    if (value == nullptr || value->kind != PickleKind::kInt || value->big || value->integer < 0) return std::nullopt;
    return static_cast<std::uint64_t>(value->integer);
  }
  std::vector<std::int64_t> shape(const PickleValue* value) const {  // torch.Size((...)), or null
    std::vector<std::int64_t> out;
    if (value != nullptr && value->kind == PickleKind::kObject) {
      const PickleValue& given = pickle_.at(value->items[1]);
      value = given.kind == PickleKind::kTuple && !given.items.empty() ? &pickle_.at(given.items[0]) : nullptr;
    }
    if (value == nullptr || value->kind != PickleKind::kTuple || value->items.size() > 64) return out;
    for (const PickleRef ref : value->items) out.push_back(pickle_.at(ref).integer);
    return out;
  }

  std::optional<std::vector<Part>> parts() const {
    const PickleValue* storage = attribute(pickle_.at(pickle_.root), "storage_data", 2);
    if (storage == nullptr || storage->kind != PickleKind::kDict) return std::nullopt;
    std::vector<Part> out;
    std::size_t taken = 0;
    for (std::size_t i = 0; i + 1 < storage->items.size(); i += 2) {
      const PickleValue &index = pickle_.at(storage->items[i]), &info = pickle_.at(storage->items[i + 1]);
      const PickleValue *name = attribute(index, "fqn", 0), *file = attribute(info, "relative_path", 0);
      const auto at = number(attribute(info, "offset", 1)), length = number(attribute(info, "length", 2));
      if (name == nullptr || name->kind != PickleKind::kString || file == nullptr ||
          file->kind != PickleKind::kString || !at || !length || name->text.size() > kMaxNameBytes ||
          file->text.size() > kMaxFileNameBytes)
        return std::nullopt;
      out.push_back(
          {std::string(name->text), std::string(file->text), shape(attribute(index, "offset", 1)), *at, *length});
      taken += sizeof(Part) + name->text.size() + file->text.size() + 8 * out.back().origin.size();
      if (taken > kMaxPartsBytes) return std::nullopt;
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Part& a, const Part& b) { return std::tie(a.file, a.at) < std::tie(b.file, b.at); });
    return out;
  }
  // What each tensor or value should be, by name.
  std::map<std::string, Wanted> wanted() const {
    std::map<std::string, Wanted> out;
    std::size_t taken = 0;
    const PickleValue* all = attribute(pickle_.at(pickle_.root), "state_dict_metadata", 0);
    if (all == nullptr || all->kind != PickleKind::kDict) return out;
    for (std::size_t i = 0; i + 1 < all->items.size(); i += 2) {
      const PickleValue& key = pickle_.at(all->items[i]);
      const PickleValue& one = pickle_.at(all->items[i + 1]);
      const PickleValue* chunks = attribute(one, "chunks", 2);
      if (key.kind != PickleKind::kString || key.text.size() > kMaxNameBytes) continue;
      Wanted& wanted = out[std::string(key.text)];
      if (chunks == nullptr || chunks->kind != PickleKind::kList) continue;
      wanted.parts = chunks->items.size();
      if (taken > kMaxPartsBytes) continue;
      wanted.sizes = shape(attribute(one, "size", 1));
      taken += 8 * wanted.sizes.size();
    }
    return out;
  }

 private:
  const Pickle& pickle_;
};

// A part joins the tensor of its name.
void join_part(const Part& part, Checkpoint& read, std::map<std::string, std::size_t>& numbers, Checkpoint& out) {
  for (Tensor& tensor : read.tensors) {
    for (Piece& piece : tensor.pieces) {
      piece.file = out.add_source(read.files[piece.file]);
      piece.origin = part.origin;
    }
    const auto [at, fresh] = numbers.emplace(tensor.name, out.tensors.size());
    if (fresh) {
      out.tensors.push_back(std::move(tensor));
      continue;
    }
    Tensor& whole = out.tensors[at->second];
    if (whole.dtype != tensor.dtype || !whole.problem.empty() || !tensor.problem.empty()) {
      if (whole.problem.empty())
        whole.problem = tensor.problem.empty() ? "its parts have different formats" : tensor.problem;
      whole.damaged = whole.damaged || tensor.damaged;
      whole.pieces.clear();
      continue;
    }
    whole.pieces.insert(whole.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  out.scalars.insert(out.scalars.end(), read.scalars.begin(), read.scalars.end());
  for (Note& note : read.notes) {
    const bool known =
        std::any_of(out.notes.begin(), out.notes.end(), [&](const Note& n) { return n.text == note.text; });
    if (!known && out.notes.size() < 64) out.notes.push_back(std::move(note));
  }
}

// The shape of the whole, where its parts have as many elements. Until then it is that of the first part.
void set_shape(const Wanted& wanted, Tensor& tensor) {
  const std::int64_t elements = trace::numel_of(wanted.sizes), pairs = tensor.dtype_name.starts_with("complex") ? 2 : 1;
  if (tensor.pieces.size() > 1 && elements >= 0 && element_count(tensor) == elements * pairs)
    tensor.sizes = wanted.sizes;
}

bool stays_inside(const std::string& file) {
  return !file.empty() && !file.starts_with('/') && file.find("..") == std::string::npos &&
         file.find('\0') == std::string::npos;
}

}  // namespace

Status read_distributed(const std::string& folder, const std::string& prefix, Checkpoint& out) {
  const std::string path = folder + "/.metadata";
  const auto metadata_file = FileBytes::open(path);
  if (!metadata_file) return metadata_file.status();
  const auto damaged = [&path](const std::string& why) {
    return Status(StatusCode::kUnreadable,
                  "'" + path + "' cannot be read: " + why + ". Without it the parts of the checkpoint have no names.");
  };
  if (metadata_file->size() > kMaxMetadataBytes) return damaged("it is larger than 256 MiB");
  const std::string bytes = metadata_file->text(0, static_cast<std::size_t>(metadata_file->size()));
  auto pickle = parse_pickle(bytes);
  if (!pickle) return damaged(pickle.status().message());
  const Metadata metadata(*pickle);
  const auto parts = metadata.parts();
  if (!parts) return damaged("it does not say where the parts are");
  auto wanted = metadata.wanted();
  std::map<std::string, std::size_t> numbers;
  std::optional<FileBytes> file;
  std::string open_name;
  std::set<std::string> missing;
  std::size_t unread = 0;
  std::uint64_t covered = 0;  // of the open file: parts do not overlap, so each byte is met once
  for (const Part& part : *parts) {
    if (const auto left = wanted.find(part.name); left != wanted.end() && left->second.parts > 0) --left->second.parts;
    if (part.file != open_name) {
      open_name = part.file;
      covered = 0;
      file.reset();
      auto opened = stays_inside(part.file) ? FileBytes::open(folder + "/" + part.file)
                                            : Result<FileBytes>(Status(StatusCode::kUnreadable, "outside"));
      if (opened)
        file = std::move(*opened);
      else
        missing.insert(part.file);
      if (file && part.file.ends_with(".safetensors")) {
        Checkpoint read;
        if (const Status status = read_safetensors_file(*file, prefix, read); !status)
          out.note(NoteKind::kDamaged, status.message());
        join_part({}, read, numbers, out);
      }
    }
    if (!file) {
      Tensor tensor;
      tensor.name = prefix + part.name;
      tensor.problem = "its file is missing";
      tensor.damaged = true;
      if (numbers.emplace(tensor.name, out.tensors.size()).second) out.tensors.push_back(std::move(tensor));
      continue;
    }
    if (part.file.ends_with(".safetensors")) continue;
    Checkpoint read;
    const bool overlaps = part.at < covered;
    const Status status = overlaps ? Status(StatusCode::kUnreadable, "It lies where another part does.")
                                   : read_torch_zip(*file, part.at, part.length, prefix + part.name, read);
    if (!overlaps && lies_within(part.at, part.length, file->size())) covered = part.at + part.length;
    if (!status && ++unread <= kMaxNamed)
      out.note(NoteKind::kDamaged, "A part of '" + part.name + "' cannot be read. " + status.message());
    join_part(part, read, numbers, out);
  }
  std::size_t named = 0;
  for (const std::string& one : missing)
    if (++named <= kMaxNamed)
      out.note(NoteKind::kDamaged, "The file '" + one + "' of '" + folder + "' is missing. Copy it there.");
  if (unread > kMaxNamed || named > kMaxNamed)
    out.note(NoteKind::kDamaged, "More parts or files are missing: " + std::to_string(unread) + " parts, " +
                                     std::to_string(named) + " files.");
  std::size_t without = 0;
  for (const auto& [name, left] : wanted) {
    without += left.parts > 0 ? 1 : 0;
    if (const auto found = numbers.find(prefix + name); found != numbers.end())
      set_shape(left, out.tensors[found->second]);
  }
  if (without > 0)
    out.note(NoteKind::kDamaged,
             "'" + path + "' says of " + std::to_string(without) + " tensors or values not where all of them is.");
  out.format = "distributed";
  return {};
}

}  // namespace nanhunt::checkpoint
