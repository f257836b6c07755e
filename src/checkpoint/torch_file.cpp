// SPDX-License-Identifier: Apache-2.0
// What torch.save writes: a zip of a pickle and storages, or, before PyTorch 1.6, pickles with the storages behind
// them.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "src/checkpoint/pickle/element_format.h"
#include "src/checkpoint/pickle/pickle.h"
#include "src/checkpoint/pickle/torch_values.h"
#include "src/checkpoint/read_file.h"
#include "src/checkpoint/zip_index.h"
#include "src/core/byte_order.h"

namespace nanhunt::checkpoint {
namespace {

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{1} << 28;

std::string quoted(const std::string& path) { return "'" + path + "'"; }

Status no_torch_file(const FileBytes& file, const std::string& why) {
  return {StatusCode::kUnreadable,
          quoted(file.path()) + " is no file of torch.save that can be read: " + why + ". Was it copied whole?"};
}

// A pickle at `at` of unknown length: read in growing parts until its end is there.
struct PickleInFile {
  std::string bytes;
  Pickle pickle;
};
Status read_pickle_at(const FileBytes& file, std::uint64_t at, PickleInFile& out) {
  for (std::uint64_t part = 1u << 16;; part *= 8) {
    const std::uint64_t left = at < file.size() ? file.size() - at : 0;
    const std::uint64_t n = std::min({part, left, kMaxPickleBytes});
    out.bytes = file.text(at, static_cast<std::size_t>(n));
    auto parsed = parse_pickle(out.bytes);
    if (parsed) {
      out.pickle = std::move(*parsed);
      return {};
    }
    if (parsed.status().code() != StatusCode::kDamaged || n == left || n == kMaxPickleBytes)
      return no_torch_file(file, parsed.status().message());
  }
}

// Storage key -> bytes of an element, of all storages that a legacy pickle refers to.
std::unordered_map<std::string, std::uint64_t> element_bytes_of_keys(const Pickle& pickle) {
  std::unordered_map<std::string, std::uint64_t> out;
  for (const PickleValue& value : pickle.values) {
    if (value.kind != PickleKind::kPersistent) continue;
    const PickleValue& id = pickle.at(value.items[0]);
    if (id.kind != PickleKind::kTuple || id.items.size() < 5) continue;
    const PickleValue &type = pickle.at(id.items[1]), &key = pickle.at(id.items[2]);
    if (type.kind != PickleKind::kGlobal || key.kind != PickleKind::kString) continue;
    const ElementFormat* format = find_torch_format(type.text);
    out.emplace(key.text, format == nullptr ? 0 : format->bytes);
  }
  return out;
}

}  // namespace

Status read_torch_zip(const FileBytes& file, std::uint64_t at, std::uint64_t length, const std::string& prefix,
                      Checkpoint& out) {
  auto entries = read_zip_index(file, at, length);
  if (!entries) return entries.status();
  const auto found = std::find_if(entries->begin(), entries->end(), [](const ZipEntry& one) {
    return one.name == "data.pkl" || one.name.ends_with("/data.pkl");
  });
  if (found == entries->end()) return no_torch_file(file, "it holds no data.pkl");
  if (!found->problem.empty()) return no_torch_file(file, "of its data.pkl, " + found->problem);
  if (found->size > kMaxPickleBytes) return no_torch_file(file, "its data.pkl is larger than 256 MiB");
  const std::string folder = found->name.substr(0, found->name.size() - std::string("data.pkl").size());
  std::unordered_map<std::string_view, const ZipEntry*> storages;
  bool big_endian = false, script = false;
  const std::string data = folder + "data/";
  for (const ZipEntry& one : *entries) {
    const std::string_view name = one.name;
    if (name.starts_with(data)) storages.emplace(name.substr(data.size()), &one);
    if (name == folder + "byteorder") big_endian = file.text(one.at, std::min<std::uint64_t>(one.size, 8)) == "big";
    if (name == folder + "constants.pkl") script = true;
  }
  if (big_endian) return no_torch_file(file, "its numbers are big-endian");
  const std::string bytes = file.text(found->at, static_cast<std::size_t>(found->size));
  auto pickle = parse_pickle(bytes);
  if (!pickle) return no_torch_file(file, pickle.status().message());
  const std::size_t number = out.add_file(file.path());
  const auto find = [&](std::string_view key) -> StorageRange {
    const auto entry = storages.find(key);
    if (entry == storages.end()) return {number, 0, 0, "its storage is missing"};
    return {number, entry->second->at, entry->second->size, entry->second->problem};
  };
  add_torch_values(*pickle, prefix, find, quoted(file.path()), out);
  if (script)
    out.note(NoteKind::kNotRead, quoted(file.path()) + " is a TorchScript program: its constants were not read.");
  if (out.format.empty()) out.format = "torch";
  return {};
}

Status read_torch_legacy(const FileBytes& file, const std::string& prefix, Checkpoint& out) {
  std::uint64_t at = 0;
  PickleInFile part;
  for (int skipped = 0; skipped < 3; ++skipped) {  // magic number, protocol, byte order and sizes
    if (Status read = read_pickle_at(file, at, part); !read) return read;
    // Some write one pickle and nothing else: no storages, so no tensors.
    if (skipped == 0 && part.pickle.at(part.pickle.root).kind != PickleKind::kInt)
      return no_torch_file(file, "it is a pickle, but none of torch.save");
    at += part.pickle.bytes;
  }
  PickleInFile object, keys;
  if (Status read = read_pickle_at(file, at, object); !read) return read;
  at += object.pickle.bytes;
  if (Status read = read_pickle_at(file, at, keys); !read) return read;
  at += keys.pickle.bytes;
  const std::size_t number = out.add_file(file.path());
  const auto bytes_of = element_bytes_of_keys(object.pickle);
  std::unordered_map<std::string, StorageRange> storages;
  bool cut = false;
  for (const PickleRef ref : keys.pickle.at(keys.pickle.root).items) {
    const PickleValue& key = keys.pickle.at(ref);
    const auto size = bytes_of.find(std::string(key.text));
    const std::string count = file.text(at, 8);
    const std::uint64_t numel = count.empty() ? 0 : load_little_endian(count.data(), 8);
    if (cut || count.empty() || size == bytes_of.end() || size->second == 0 ||
        numel > (file.size() - at - 8) / size->second) {
      cut = true;  // where the next one begins is not known either
      storages[std::string(key.text)] = {number, 0, 0, "its storage lies outside the file"};
      continue;
    }
    storages[std::string(key.text)] = {number, at + 8, numel * size->second, ""};
    at += 8 + numel * size->second;
  }
  const auto find = [&](std::string_view key) -> StorageRange {
    const auto found = storages.find(std::string(key));
    return found == storages.end() ? StorageRange{number, 0, 0, "its storage is missing"} : found->second;
  };
  add_torch_values(object.pickle, prefix, find, quoted(file.path()), out);
  if (out.format.empty()) out.format = "torch (legacy)";
  return {};
}

}  // namespace nanhunt::checkpoint
