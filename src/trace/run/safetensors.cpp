// SPDX-License-Identifier: Apache-2.0
#include "src/trace/run/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "src/trace/segments/files.h"

namespace nanhunt::trace {
namespace {

using Json = nlohmann::json;

constexpr SafetensorsLimits kCaptureLimits;
constexpr std::uint64_t kMaxHeaderBytes = kCaptureLimits.header_bytes;
constexpr std::size_t kMaxArrays = kCaptureLimits.arrays;
constexpr std::size_t kMaxDims = 64;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr std::size_t kLengthBytes = kSafetensorsLengthBytes;

struct FormatName {
  DType dtype;
  const char* name;
};
constexpr FormatName kFormats[] = {
    {DType::kF16, "F16"},        {DType::kBF16, "BF16"},    {DType::kF32, "F32"}, {DType::kF64, "F64"},
    {DType::kE4M3FN, "F8_E4M3"}, {DType::kE5M2, "F8_E5M2"}, {DType::kI64, "I64"}, {DType::kI32, "I32"},
    {DType::kU8, "U8"},          {DType::kBool, "BOOL"},
};

const char* format_name(DType dtype) {
  const auto* at =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& f) { return f.dtype == dtype; });
  return at == std::end(kFormats) ? "" : at->name;
}

std::optional<DType> parse_format(const std::string& name) {
  const auto* at =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& f) { return f.name == name; });
  return at == std::end(kFormats) ? std::nullopt : std::optional(at->dtype);
}

// With the length before it, and spaces that align what follows to 8 bytes.
std::string header_of(const Safetensors& tensors) {
  Json header = Json::object();
  std::uint64_t offset = 0;
  for (const NamedArray& array : tensors.arrays) {
    header[array.name] = {{"dtype", format_name(array.dtype)},
                          {"shape", array.sizes},
                          {"data_offsets", {offset, offset + array.bytes.size()}}};
    offset += array.bytes.size();
  }
  if (!tensors.metadata.empty()) header["__metadata__"] = tensors.metadata;
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out;
  for (std::size_t i = 0; i < kLengthBytes; ++i) out.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xff));
  return out.append(text);
}

Status write_all(int fd, const char* data, std::size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return {StatusCode::kWriteFailed, "could not write '" + path + "': " + error_text(n < 0 ? errno : ENOSPC)};
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return {};
}

Status unreadable(const std::string& what, const std::string& why) {
  return {StatusCode::kUnreadable, what + " is not a safetensors file that can be used: " + why + "."};
}

std::optional<std::uint64_t> as_unsigned(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

// "" or what is wrong with it.
std::string read_entry(const Json& entry, std::uint64_t data_bytes, SafetensorsEntry& out) {
  if (!entry.is_object()) return "an entry is no object";
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string() || shape == entry.end() || !shape->is_array() ||
      offsets == entry.end() || !offsets->is_array() || offsets->size() != 2)
    return "an entry lacks dtype, shape or data_offsets";
  out.format = dtype->get<std::string>();
  out.dtype = parse_format(out.format);
  if (shape->size() > kMaxDims) return "an array has too many dimensions";
  for (const Json& size : *shape) {
    const auto n = as_unsigned(size);
    if (!n || *n > static_cast<std::uint64_t>(kMaxElements)) return "a size is out of bounds";
    out.sizes.push_back(static_cast<std::int64_t>(*n));
  }
  const auto begin = as_unsigned((*offsets)[0]), end = as_unsigned((*offsets)[1]);
  if (!begin || !end || *begin > *end || *end > data_bytes) return "an array lies outside the file";
  out.begin = *begin;
  out.end = *end;
  if (!out.dtype) return "";
  const std::int64_t numel = numel_of(out.sizes);
  if (numel < 0 || static_cast<std::uint64_t>(numel) * dtype_size(*out.dtype) != *end - *begin)
    return "an array's shape does not fit its bytes";
  return "";
}

}  // namespace

std::int64_t numel_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t n = 1;
  bool empty = false;
  for (std::int64_t size : sizes) {
    if (size < 0) return -1;
    if (size == 0) empty = true;
    if (size > 0 && n > kMaxElements / size) return -1;
    if (size > 0) n *= size;
  }
  return empty ? 0 : n;
}

Status write_safetensors(const std::string& path, const Safetensors& tensors) {
  std::set<std::string> names;
  for (const NamedArray& array : tensors.arrays) {
    const std::int64_t numel = numel_of(array.sizes);
    if (array.name.empty() || array.name == "__metadata__" || !names.insert(array.name).second || numel < 0 ||
        static_cast<std::uint64_t>(numel) * dtype_size(array.dtype) != array.bytes.size() || names.size() > kMaxArrays)
      return {StatusCode::kUsage, "an array cannot be written to '" + path + "': its name or its shape does not fit."};
  }
  std::string header;
  try {
    header = header_of(tensors);
  } catch (const Json::exception&) {
    return {StatusCode::kUsage, "an array cannot be written to '" + path + "': its name is not UTF-8."};
  }
  if (header.size() > kMaxHeaderBytes)
    return {StatusCode::kUsage,
            "arrays cannot be written to '" + path + "': their names and shapes fill more than 1 MiB."};
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return {StatusCode::kWriteFailed, "could not create '" + path + "': " + error_text(errno)};
  Status written = write_all(fd.get(), header.data(), header.size(), path);
  for (const NamedArray& array : tensors.arrays) {
    if (written)
      written = write_all(fd.get(), reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size(), path);
  }
  const int error = fd.close();
  if (written && error != 0)
    written = {StatusCode::kWriteFailed, "could not write '" + path + "': " + error_text(error)};
  if (!written) ::unlink(path.c_str());  // half a capture is none
  return written;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                   const std::string& what, const SafetensorsLimits& limits) {
  // Deep nesting is refused before the parser recurses into it; a header needs three levels.
  bool too_deep = false;
  const auto limit = [&too_deep](int depth, Json::parse_event_t, Json&) {
    if (depth > 8) too_deep = true;
    return depth <= 8;
  };
  const Json header = Json::parse(text.begin(), text.end(), limit, /*allow_exceptions=*/false);
  if (too_deep || !header.is_object()) return unreadable(what, "its header is no JSON object");
  if (header.size() > limits.arrays + 1) return unreadable(what, "it holds too many arrays");
  SafetensorsHeader out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return unreadable(what, "its metadata is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return unreadable(what, "its metadata holds something other than text");
        out.metadata.emplace(key, value.get<std::string>());
      }
      continue;
    }
    SafetensorsEntry one;
    one.name = name;
    one.problem = read_entry(entry, data_bytes, one);
    out.entries.push_back(std::move(one));
  }
  std::stable_sort(out.entries.begin(), out.entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;  // arrays must not overlap: a small file cannot claim much memory
  for (SafetensorsEntry& one : out.entries) {
    if (!one.problem.empty()) continue;
    if (one.begin < covered)
      one.problem = "two arrays share bytes";
    else
      covered = one.end;
  }
  return out;
}

Result<Safetensors> parse_safetensors(const std::string& bytes, const std::string& what) {
  if (bytes.size() < kLengthBytes) return unreadable(what, "it is shorter than its own length");
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes)
    return unreadable(what, "its header claims more bytes than there are, or than 1 MiB");
  const std::uint64_t data_at = kLengthBytes + length;
  auto header = parse_safetensors_header(std::string_view(bytes).substr(kLengthBytes, length), bytes.size() - data_at,
                                         what, kCaptureLimits);
  if (!header) return header.status();
  Safetensors out;
  out.metadata = std::move(header->metadata);
  for (SafetensorsEntry& entry : header->entries) {
    if (!entry.problem.empty()) return unreadable(what, entry.problem);
    if (!entry.dtype) return unreadable(what, "a number format is not known");
    NamedArray array{std::move(entry.name), *entry.dtype, std::move(entry.sizes), {}};
    array.bytes.resize(static_cast<std::size_t>(entry.end - entry.begin));
    if (!array.bytes.empty()) std::memcpy(array.bytes.data(), bytes.data() + data_at + entry.begin, array.bytes.size());
    out.arrays.push_back(std::move(array));
  }
  return out;
}

Result<Safetensors> read_safetensors(const std::string& path, std::uint64_t max_bytes) {
  auto file = InputFile::open(path, /*follow_links=*/false);
  if (!file) return file.status();
  if (file->size() > max_bytes)
    return Status(StatusCode::kUnreadable,
                  "'" + path + "' is larger than a capture may be (" + std::to_string(max_bytes) + " bytes).");
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(file->size()));
  while (bytes.size() < file->size()) {
    const auto part = file->view(bytes.size(), 1u << 20);
    if (part.empty())
      return Status(StatusCode::kUnreadable, "could not read '" + path + "': " + error_text(file->failed()));
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return parse_safetensors(bytes, "'" + path + "'");
}

}  // namespace nanhunt::trace
