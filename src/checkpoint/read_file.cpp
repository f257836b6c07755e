// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/read_file.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace nanhunt::checkpoint {
namespace {

constexpr std::string_view kTorchEndings[] = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::string_view kSafetensorsEnding = ".safetensors";
// 2, then the magic number 0x1950a86a20f9469cfc6c as a pickled integer.
constexpr std::string_view kLegacyBegin("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);

}  // namespace

bool has_checkpoint_ending(const std::string& name) {
  return name.ends_with(kSafetensorsEnding) || std::any_of(std::begin(kTorchEndings), std::end(kTorchEndings),
                                                           [&](std::string_view e) { return name.ends_with(e); });
}

FileKind file_kind(const std::string& path) {
  const auto file = FileBytes::open(path);
  if (!file) return FileKind::kNone;
  const std::string begin = file->text(0, static_cast<std::size_t>(std::min<std::uint64_t>(file->size(), 16)));
  if (begin.starts_with("PK\x03\x04")) return FileKind::kTorchZip;
  if (begin.starts_with(kLegacyBegin)) return FileKind::kTorchLegacy;
  if (path.ends_with(kSafetensorsEnding) ||
      (begin.size() >= 9 && begin[8] == '{' && begin[7] == '\0' && begin[6] == '\0'))
    return FileKind::kSafetensors;
  if (!has_checkpoint_ending(path)) return FileKind::kNone;
  return begin.starts_with('\x80') ? FileKind::kTorchLegacy : FileKind::kTorchZip;
}

Status read_file(const std::string& path, const std::string& prefix, Checkpoint& out) {
  auto file = FileBytes::open(path);
  if (!file) return file.status();
  const FileKind kind = file_kind(path);
  switch (kind) {
    case FileKind::kSafetensors:
      return read_safetensors_file(*file, prefix, out);
    case FileKind::kTorchZip:
      return read_torch_zip(*file, 0, file->size(), prefix, out);
    case FileKind::kTorchLegacy:
      return read_torch_legacy(*file, prefix, out);
    case FileKind::kNone:
      break;
  }
  return {StatusCode::kUnreadable, "'" + path +
                                       "' is no checkpoint that can be read. Name a .safetensors, .pt, .pth, .bin or "
                                       ".ckpt file, or a folder of them."};
}

}  // namespace nanhunt::checkpoint
