// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace nanhunt::checkpoint {

Result<FileBytes> FileBytes::open(const std::string& path) {
  FileBytes file;
  file.path_ = path;
  // Non-blocking, so that a pipe in place of the file cannot hang the open.
  file.fd_ = trace::FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd_.valid()) {
    const int error = errno;
    if (error == ENOENT) return Status(StatusCode::kNotFound, "'" + path + "' does not exist. Check the path.");
    return Status(StatusCode::kUnreadable,
                  "cannot open '" + path + "': " + trace::error_text(error) + ". Check the path and its permissions.");
  }
  struct stat info {};
  if (::fstat(file.fd_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return Status(StatusCode::kUnreadable,
                  "'" + path + "' is not a regular file. Name a checkpoint file or a folder of them.");
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

FileBytes FileBytes::of(std::shared_ptr<const std::string> bytes) {
  FileBytes out;
  out.size_ = bytes->size();
  out.bytes_ = std::move(bytes);
  return out;
}

bool FileBytes::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (!lies_within(offset, out.size(), size_)) return false;
  if (bytes_) {
    const auto from = std::as_bytes(std::span(*bytes_)).subspan(static_cast<std::size_t>(offset), out.size());
    std::copy(from.begin(), from.end(), out.begin());
    return true;
  }
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;  // it became shorter than it was: as good as unreadable
    done += static_cast<std::size_t>(got);
  }
  return true;
}

std::string FileBytes::text(std::uint64_t offset, std::size_t n) const {
  if (!lies_within(offset, n, size_)) return {};
  std::string out(n, '\0');
  if (!read(offset, std::as_writable_bytes(std::span(out.data(), out.size())))) return {};
  return out;
}

}  // namespace nanhunt::checkpoint
