// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/zip_index.h"
#include "src/core/byte_order.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace nanhunt::checkpoint {
namespace {

constexpr std::uint64_t kEndBytes = 22, kMaxComment = 65535, kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kZip64EndBytes = 56, kZip64LocatorBytes = 20;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{1} << 28;
constexpr std::uint32_t kSaturated = 0xffffffff;

Status zip_unreadable(const FileBytes& file, const std::string& why) {
  return {StatusCode::kUnreadable,
          "'" + file.path() + "' is no zip archive that can be read: " + why + ". Was it copied whole?"};
}

struct Directory {
  std::uint64_t at = 0, bytes = 0, entries = 0;  // `at` within the archive
};

// Numbers that do not fit 32 bits stand in an extra field, in this order, each only where its own is saturated.
bool read_zip64_extra(std::string_view extra, bool size, bool stored, bool offset, ZipEntry& entry,
                      std::uint64_t& stored_size, std::uint64_t& header_at) {
  while (extra.size() >= 4) {
    const std::uint64_t id = load_little_endian(extra.data(), 2), bytes = load_little_endian(extra.data() + 2, 2);
    extra.remove_prefix(4);
    if (bytes > extra.size()) return false;
    if (id == 1) {
      std::string_view field = extra.substr(0, bytes);
      const auto take = [&field](std::uint64_t& value) {
        if (field.size() < 8) return false;
        value = load_little_endian(field.data(), 8);
        field.remove_prefix(8);
        return true;
      };
      return (!size || take(entry.size)) && (!stored || take(stored_size)) && (!offset || take(header_at));
    }
    extra.remove_prefix(bytes);
  }
  return !size && !stored && !offset;
}

std::optional<Directory> find_directory(const FileBytes& file, std::uint64_t at, std::uint64_t length) {
  const std::uint64_t tail = std::min(length, kEndBytes + kMaxComment), tail_at = at + length - tail;
  const std::string end = file.text(tail_at, tail);
  const std::size_t found = end.rfind("PK\x05\x06");
  if (found == std::string::npos || end.size() - found < kEndBytes) return std::nullopt;
  const char* p = end.data() + found;
  Directory out{load_little_endian(p + 16, 4), load_little_endian(p + 12, 4), load_little_endian(p + 10, 2)};
  const std::uint64_t end_at = tail - found;  // from the archive's end
  if (out.at != kSaturated && out.bytes != kSaturated && out.entries != 0xffff) return out;
  if (length < end_at + kZip64LocatorBytes) return std::nullopt;
  const std::string locator = file.text(at + length - end_at - kZip64LocatorBytes, kZip64LocatorBytes);
  if (!locator.starts_with("PK\x06\x07")) return out;  // exactly so many, and no zip64
  const std::uint64_t record_at = load_little_endian(locator.data() + 8, 8);
  if (!lies_within(record_at, kZip64EndBytes, length)) return std::nullopt;
  const std::string record = file.text(at + record_at, kZip64EndBytes);
  if (!record.starts_with("PK\x06\x06")) return std::nullopt;
  return Directory{load_little_endian(record.data() + 48, 8), load_little_endian(record.data() + 40, 8),
                   load_little_endian(record.data() + 32, 8)};
}

// The local header has a name and an extra field of lengths of its own.
std::string locate(const FileBytes& file, std::uint64_t at, std::uint64_t length, std::uint64_t header_at,
                   ZipEntry& entry) {
  if (!lies_within(header_at, kLocalBytes, length)) return "its header lies outside the file";
  const std::string header = file.text(at + header_at, kLocalBytes);
  if (!header.starts_with("PK\x03\x04")) return "its header is damaged";
  const std::uint64_t begin =
      header_at + kLocalBytes + load_little_endian(header.data() + 26, 2) + load_little_endian(header.data() + 28, 2);
  if (!lies_within(begin, entry.size, length)) return "its bytes lie outside the file";
  entry.at = at + begin;
  return "";
}

}  // namespace

Result<std::vector<ZipEntry>> read_zip_index(const FileBytes& file, std::uint64_t at, std::uint64_t length) {
  if (!lies_within(at, length, file.size())) return zip_unreadable(file, "it lies outside the file");
  const auto directory = find_directory(file, at, length);
  if (!directory) return zip_unreadable(file, "its directory, which stands at the end, is missing");
  if (!lies_within(directory->at, directory->bytes, length) || directory->bytes > kMaxDirectoryBytes ||
      directory->entries > directory->bytes / kEntryBytes)
    return zip_unreadable(file, "its directory claims more than the file has");
  const std::string bytes = file.text(at + directory->at, directory->bytes);
  if (bytes.size() != directory->bytes) return zip_unreadable(file, "its directory cannot be read");
  std::vector<ZipEntry> out;
  std::string_view rest = bytes;
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    if (rest.size() < kEntryBytes || !rest.starts_with("PK\x01\x02"))
      return zip_unreadable(file, "its directory is damaged");
    const char* p = rest.data();
    const std::uint64_t flags = load_little_endian(p + 8, 2), method = load_little_endian(p + 10, 2);
    std::uint64_t stored = load_little_endian(p + 20, 4), header_at = load_little_endian(p + 42, 4);
    const std::uint64_t name = load_little_endian(p + 28, 2), extra = load_little_endian(p + 30, 2),
                        comment = load_little_endian(p + 32, 2);
    if (rest.size() - kEntryBytes < name + extra + comment) return zip_unreadable(file, "its directory is damaged");
    ZipEntry entry;
    entry.size = load_little_endian(p + 24, 4);
    entry.name = rest.substr(kEntryBytes, name);
    const bool zip64 = read_zip64_extra(rest.substr(kEntryBytes + name, extra), entry.size == kSaturated,
                                        stored == kSaturated, header_at == kSaturated, entry, stored, header_at);
    if (!zip64)
      entry.problem = "its zip64 numbers are missing";
    else if ((flags & 1) != 0)
      entry.problem = "it is encrypted";
    else if (method != 0)
      entry.problem = "it is compressed";
    else if (stored != entry.size)
      entry.problem = "its sizes disagree";
    else
      entry.problem = locate(file, at, length, header_at, entry);
    if (!entry.problem.empty()) entry.at = entry.size = 0;
    out.push_back(std::move(entry));
    rest.remove_prefix(kEntryBytes + name + extra + comment);
  }
  return out;
}

}  // namespace nanhunt::checkpoint
