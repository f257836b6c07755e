// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/log_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kPiece = 1u << 20;

// Up to `count` more bytes of what is open, put behind `text`; false where it cannot be read.
bool read_more(int file, std::size_t count, std::string& text) {
  const std::size_t end = text.size() + count;
  while (text.size() < end) {
    const std::size_t before = text.size();
    text.resize(std::min(before + kPiece, end));
    const ssize_t got = ::read(file, text.data() + before, text.size() - before);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
  }
  return true;
}

// The last `count` bytes of what is left: by a jump where that can be, else by reading through. `skipped`: there was
// more before them.
bool read_end(int file, std::size_t count, std::string& text, bool& skipped) {
  const off_t here = ::lseek(file, 0, SEEK_CUR), size = here < 0 ? -1 : ::lseek(file, 0, SEEK_END);
  if (size >= 0) {
    const off_t start = std::max(here, size - static_cast<off_t>(count));
    skipped = start > here;
    ::lseek(file, start, SEEK_SET);
    return read_more(file, count, text);
  }
  while (true) {
    const std::size_t before = text.size();
    if (!read_more(file, kPiece, text)) return false;
    const bool ended = text.size() == before;
    if (text.size() > (ended ? count : 2 * count)) {
      skipped = true;
      text.erase(0, text.size() - count);
    }
    if (ended) return true;
  }
}

Result<LogBytes> read_open(int file, const std::string& path, std::size_t limit, Keep keep) {
  LogBytes out;
  const auto failed = [&] {
    return Status(StatusCode::kUnreadable, "cannot read " + path + ": " + std::strerror(errno));
  };
  std::string end;
  const std::size_t half = keep == Keep::kBothEnds ? limit / 2 : 0;
  if (!read_more(file, limit - half, out.bytes)) return failed();
  if (half == 0) {
    if (out.bytes.size() == limit && !read_more(file, 1, end)) return failed();
    out.cut = !end.empty();
    return out;
  }
  if (out.bytes.size() == limit - half && !read_end(file, half, end, out.cut)) return failed();
  // The line in which the start ends, and that in which the end begins, are left out.
  const bool wide = out.bytes.starts_with("\xff\xfe") || out.bytes.starts_with("\xfe\xff");  // UTF-16
  if (out.cut && !wide) {
    out.bytes.resize(out.bytes.find_last_of("\r\n") + 1);
    end.erase(0, std::min(end.find_first_of("\r\n"), end.size() - 1) + 1);
  }
  out.bytes += end;
  return out;
}

}  // namespace

Result<LogBytes> read_log_file(const std::string& path, bool follow_links, std::size_t limit, Keep keep) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_links ? 0 : O_NOFOLLOW));
  if (file < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kUnreadable;
    return Status(code, "cannot open " + path + ": " + std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file);
    return Status(StatusCode::kUnreadable, path + " is no regular file; give a folder, a file, or '-' for stdin");
  }
  Result<LogBytes> out = read_open(file, path, limit, keep);
  ::close(file);
  return out;
}

Result<LogBytes> read_log_stdin(std::size_t limit) { return read_open(STDIN_FILENO, "stdin", limit, Keep::kBothEnds); }

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto tail = [&](unsigned shift) { out += static_cast<char>(0x80u | ((code >> shift) & 0x3fu)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0u | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0u | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0u | ((code >> 18) & 7u));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string as_utf8(std::string bytes) {
  const std::string_view text = bytes;
  const bool little = text.starts_with("\xff\xfe"), big = text.starts_with("\xfe\xff");
  if (!little && !big) return bytes;
  const auto unit = [&](std::size_t at) {
    const auto first = static_cast<unsigned char>(text[at]), second = static_cast<unsigned char>(text[at + 1]);
    return static_cast<std::uint32_t>(little ? first | second << 8 : first << 8 | second);
  };
  std::string out;
  out.reserve(text.size() / 2);
  for (std::size_t at = 2; at + 1 < text.size(); at += 2) {
    std::uint32_t code = unit(at);
    const bool high = code >= 0xd800 && code < 0xdc00;
    if (high && at + 3 < text.size() && unit(at + 2) >= 0xdc00 && unit(at + 2) < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10 | (unit(at + 2) - 0xdc00));
      at += 2;
    }
    append_utf8(out, code);
  }
  return out;
}

}  // namespace nanhunt::autopsy
