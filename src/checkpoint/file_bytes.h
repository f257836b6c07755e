// SPDX-License-Identifier: Apache-2.0
// A file of which exact ranges are read, and never more than was asked for. Its size is the one at the time it was
// opened. Or bytes in memory, read in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nanhunt/status.h"
#include "src/trace/segments/files.h"

namespace nanhunt::checkpoint {

class FileBytes {
 public:
  static Result<FileBytes> open(const std::string& path);  // regular files only; links are followed

  static FileBytes of(std::shared_ptr<const std::string> bytes);

  // Exactly `out.size()` bytes at `offset`; false where the file has fewer or cannot be read.
  bool read(std::uint64_t offset, std::span<std::byte> out) const;
  // The same as text; nullopt-like: empty where `n` bytes are not there.
  std::string text(std::uint64_t offset, std::size_t n) const;
  std::uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  trace::FileDescriptor fd_;
  std::string path_;
  std::uint64_t size_ = 0;
  std::shared_ptr<const std::string> bytes_;  // null: a file
};

// Whether [begin, begin + length) lies within `size`, without overflow.
inline bool lies_within(std::uint64_t begin, std::uint64_t length, std::uint64_t size) {
  return begin <= size && length <= size - begin;
}

}  // namespace nanhunt::checkpoint
