// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "src/core/text.h"

namespace nanhunt::cli {
namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;
constexpr int kDefaultWidth = 100;

// 0 or errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::string error_text(int error) { return std::error_code(error, std::generic_category()).message(); }

Status cannot_write(const std::string& path, int error) {
  return {StatusCode::kWriteFailed,
          "cannot write '" + printable(path) + "': " + error_text(error) +
              ". Check the folder, its permissions and the space left, or choose another place."};
}

Status write_directly(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return cannot_write(path, errno);
  int error = write_all(fd, text);
  if (::close(fd) != 0 && error == 0) error = errno;
  return error == 0 || error == EPIPE ? Status::ok() : cannot_write(path, error);
}

}  // namespace

ExitStatus exit_status_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kDone;
    case StatusCode::kUsage:
      return kWrongUsage;
    case StatusCode::kNotFound:
    case StatusCode::kUnreadable:
    case StatusCode::kUnsupported:
      return kUnreadable;
    case StatusCode::kDamaged:
      return kDamagedInput;
    case StatusCode::kWriteFailed:
      return kNotWritten;
  }
  return kUnreadable;
}

void say(std::string_view text) {
  const std::string line = "nanhunt: " + printable(text) + "\n";
  static_cast<void>(write_all(STDERR_FILENO, line));
}

int fail(const Status& status) {
  say(status.message());
  return exit_status_of(status);
}

DataOut::~DataOut() { flush(); }

void DataOut::write(std::string_view text) {
  if (closed_) return;
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) flush();
}

void DataOut::flush() {
  if (closed_ || buffer_.empty()) return;
  const int error = write_all(STDOUT_FILENO, buffer_);
  buffer_.clear();
  if (error == 0) return;
  closed_ = true;
  if (error != EPIPE) error_ = error;
}

ExitStatus DataOut::finish() {
  flush();
  if (error_ == 0) return kDone;
  say("cannot write to stdout: " + error_text(error_) + ". Check the space left where it goes.");
  return kNotWritten;
}

int print_and_return(std::string_view text, int status) {
  DataOut out;
  out.write(text);
  const ExitStatus written = out.finish();
  return written == kDone ? status : written;
}

bool stdout_has_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::strcmp(term, "dumb") == 0) return false;
  return ::isatty(STDOUT_FILENO) == 1;
}

int stdout_width() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return kDefaultWidth;
  }
  return size.ws_col;
}

Status replace_file(const std::string& path, std::string_view text) {
  std::string name = path + ".XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0) return cannot_write(path, errno);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  int error = write_all(fd, text);
  if (error == 0 && ::fchmod(fd, 0666 & ~mask) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(name.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return Status::ok();
  ::unlink(name.c_str());
  return cannot_write(path, error);
}

Status write_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    DataOut out;
    out.write(text);
    if (out.finish() == kDone) return Status::ok();
    return {StatusCode::kWriteFailed, "stdout is incomplete."};
  }
  struct stat target {};
  if (::stat(path.c_str(), &target) == 0 && !S_ISREG(target.st_mode)) {
    return S_ISDIR(target.st_mode) ? cannot_write(path, EISDIR) : write_directly(path, text);
  }
  return replace_file(path, text);
}

}  // namespace nanhunt::cli
