// SPDX-License-Identifier: Apache-2.0
#include "src/trace/segments/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace nanhunt::trace {
namespace {

constexpr std::size_t kWindowBytes = 1u << 20;

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space or use another disk; what was written before stays readable.";
    case EFBIG:
      return "Raise the file size limit (ulimit -f); what was written before stays readable.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose a folder that you may write to.";
    default:
      return "What was written before stays readable.";
  }
}

Status write_failed(const std::string& path, int error) {
  return {StatusCode::kWriteFailed, fmt::format("cannot write '{}': {}. {}", path, error_text(error), advice(error))};
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() { close(); }

int FileDescriptor::release() { return std::exchange(fd_, -1); }

int FileDescriptor::close() {
  if (fd_ < 0) return 0;
  return ::close(release()) == 0 || errno == EINTR ? 0 : errno;
}

std::string error_text(int error) { return std::generic_category().message(error); }

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  file.fd_ = FileDescriptor(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.fd_.valid()) {
    const int error = errno;
    return Status{StatusCode::kWriteFailed,
                  fmt::format("cannot create '{}': {}. {}", path, error_text(error), advice(error))};
  }
  return file;
}

Status OutputFile::append(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(size_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : ENOSPC;
      // Where even this fails, the next chunk overwrites the torn one and a reader skips what is left of it.
      [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), static_cast<off_t>(size_));
      return write_failed(path_, error);
    }
    done += static_cast<std::size_t>(wrote);
  }
  size_ += bytes.size();
  return Status::ok();
}

Status OutputFile::close() {
  const int error = fd_.close();
  return error == 0 ? Status::ok() : write_failed(path_, error);
}

Result<InputFile> InputFile::open(const std::string& path, bool follow_links) {
  InputFile file;
  // Non-blocking, so that a pipe in place of the file cannot hang us before fstat tells.
  file.fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_links ? 0 : O_NOFOLLOW)));
  if (!file.fd_.valid()) {
    const int error = errno;
    if (error == ENOENT)
      return Status{StatusCode::kNotFound, fmt::format("'{}' does not exist. Check the path.", path)};
    if (error == ELOOP) {
      return Status{StatusCode::kUnreadable,
                    fmt::format("'{}' is a symbolic link, which is not followed out of a run. Name its target.", path)};
    }
    return Status{StatusCode::kUnreadable,
                  fmt::format("cannot open '{}': {}. Check the path and its permissions.", path, error_text(error))};
  }
  struct stat info {};
  if (::fstat(file.fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Status{StatusCode::kUnreadable,
                  fmt::format("'{}' is not a regular file. Name a run folder or a .nht file.", path)};
  }
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

std::span<const std::byte> InputFile::view(std::uint64_t offset, std::size_t n) {
  if (offset >= size_) return {};
  n = static_cast<std::size_t>(std::min<std::uint64_t>(n, size_ - offset));
  if (offset >= window_at_ && offset - window_at_ <= window_size_ && window_size_ - (offset - window_at_) >= n) {
    return {window_.data() + (offset - window_at_), n};
  }
  const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(std::max(n, kWindowBytes), size_ - offset));
  if (window_.size() < want) window_.resize(want);
  window_at_ = offset;
  window_size_ = 0;
  while (window_size_ < want) {
    const ssize_t got = ::pread(fd_.get(), window_.data() + window_size_, want - window_size_,
                                static_cast<off_t>(offset + window_size_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      error_ = got < 0 ? errno : EIO;  // it became shorter than it was: as good as unreadable
      break;
    }
    window_size_ += static_cast<std::size_t>(got);
  }
  return {window_.data(), std::min(n, window_size_)};
}

Status write_whole_file(const std::string& folder, const std::string& name, std::string_view text) {
  const std::string temporary = fmt::format("{}/.{}.{}.tmp", folder, name, ::getpid());
  ::unlink(temporary.c_str());  // of a process that had this number before, and was killed
  auto file = OutputFile::create(temporary);
  if (!file) return file.status();
  Status status = file->append(std::as_bytes(std::span(text.data(), text.size())));
  if (Status closed = file->close(); status && !closed) status = closed;
  if (status && std::rename(temporary.c_str(), (folder + "/" + name).c_str()) != 0) {
    status = write_failed(folder + "/" + name, errno);
  }
  if (!status) ::unlink(temporary.c_str());
  return status;
}

}  // namespace nanhunt::trace
