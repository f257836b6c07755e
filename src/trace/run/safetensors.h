// SPDX-License-Identifier: Apache-2.0
// Tensors in a file: the safetensors format (8 bytes of length, a JSON header, then the numbers, little-endian and
// row-major). Written for captures; the reader believes nothing that it has not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
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
