// SPDX-License-Identifier: Apache-2.0
// The few file operations a trace needs, with their failures as Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/status.h"

namespace nanhunt::trace {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  int close();  // 0 or errno

 private:
  int fd_ = -1;
};

std::string error_text(int error);  // of errno

// A new file that nobody else writes.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);  // fails if it exists

  // All of `bytes` behind what was written before, or nothing: a torn part is cut off again.
  Status append(std::span<const std::byte> bytes);
  std::uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  Status close();

 private:
  FileDescriptor fd_;
  std::string path_;
  std::uint64_t size_ = 0;
};

// A file being read, through a window; its size is the one at the time it was opened.
class InputFile {
 public:
  // Only regular files. `follow_links` false also refuses a symbolic link.
  static Result<InputFile> open(const std::string& path, bool follow_links);

  // Up to n bytes at `offset`: fewer only at the file's end or after a read error (then failed()). Valid
  // until the next call.
  std::span<const std::byte> view(std::uint64_t offset, std::size_t n);
  std::uint64_t size() const { return size_; }
  int failed() const { return error_; }  // errno of the last failed read, 0: none

 private:
  FileDescriptor fd_;
  std::uint64_t size_ = 0, window_at_ = 0;
  std::vector<std::byte> window_;
  std::size_t window_size_ = 0;
  int error_ = 0;
};

// Writes to a temporary name, then renames: readers see the whole text or none.
Status write_whole_file(const std::string& folder, const std::string& name, std::string_view text);

}  // namespace nanhunt::trace
