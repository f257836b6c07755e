// SPDX-License-Identifier: Apache-2.0
// Log bytes: what is read of a file or of stdin, bounded, and as UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanhunt/status.h"

namespace nanhunt::autopsy {

struct LogBytes {
  std::string bytes;
  bool cut = false;  // there is more
};

// What is kept of more than `limit` bytes: the start, or whole lines of the start and of the end.
enum class Keep : std::uint8_t { kStart, kBothEnds };

// Fails for what is no regular file: a pipe would wait.
Result<LogBytes> read_log_file(const std::string& path, bool follow_links, std::size_t limit, Keep keep);
Result<LogBytes> read_log_stdin(std::size_t limit);

// UTF-16 with its mark at the start, as PowerShell writes what it redirects, becomes UTF-8; all else stays.
std::string as_utf8(std::string bytes);
std::string lower_case(std::string_view text);  // of ASCII
void append_utf8(std::string& out, std::uint32_t code);

}  // namespace nanhunt::autopsy
