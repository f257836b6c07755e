// SPDX-License-Identifier: Apache-2.0
// Tensors in a file: the safetensors format (8 bytes of length, a JSON header, then the numbers, little-endian and
// row-major). Written for captures; the reader believes nothing that it has not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/status.h"

namespace nanhunt::trace {

struct NamedArray {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  std::vector<std::byte> bytes;  // row-major
  bool operator==(const NamedArray&) const = default;
};

struct Safetensors {
  std::vector<NamedArray> arrays;               // in file order
  std::map<std::string, std::string> metadata;  // "__metadata__"
  bool operator==(const Safetensors&) const = default;
};

// One array as the header describes it; its numbers are in the file.
struct SafetensorsEntry {
  std::string name;
  std::string format;          // "BF16", as the file has it
  std::optional<DType> dtype;  // empty: a format that is not known here
  std::vector<std::int64_t> sizes;
  std::uint64_t begin = 0, end = 0;  // within the bytes behind the header
  std::string problem;               // why it cannot be used; empty: it lies in the file and its shape fits
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

struct SafetensorsLimits {
  std::uint64_t header_bytes = 1u << 20;
  std::size_t arrays = 4096;
};
// The length of the header at a file's beginning.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

// The header of a file with `data_bytes` behind it. An entry that is wrong is kept with its problem; fails where the
// header is no header.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                   const std::string& what, const SafetensorsLimits& limits);

// Elements of a shape; -1 if a size is negative or the product is beyond 2^40.
std::int64_t numel_of(const std::vector<std::int64_t>& sizes);

// A new file that only its owner may read (mode 0600). Fails if `path` exists, a link included. Names must differ, and
// bytes must fit their shape; names that are no UTF-8 are refused.
Status write_safetensors(const std::string& path, const Safetensors& tensors);

// Only regular files, never through a link, of at most `max_bytes`.
Result<Safetensors> read_safetensors(const std::string& path, std::uint64_t max_bytes);
// The same of bytes already in memory; `what` names them in messages.
Result<Safetensors> parse_safetensors(const std::string& bytes, const std::string& what);

}  // namespace nanhunt::trace
