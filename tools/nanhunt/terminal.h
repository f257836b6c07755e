// SPDX-License-Identifier: Apache-2.0
// How verbs speak: data on stdout, talk on stderr, files whole or not at all, and the exit statuses that
// every verb shares.
#pragma once

#include <string>
#include <string_view>

#include "nanhunt/status.h"

namespace nanhunt::cli {

enum ExitStatus : int {
  kDone = 0,
  kFoundFault = 1,
  kWrongUsage = 2,
  kUnreadable = 3,
  kDamagedInput = 4,
  kInconclusive = 5,
  kNotWritten = 6,
};
ExitStatus exit_status_of(const Status& status);

// One line of talk, "nanhunt: ..."; what could steer a terminal is made visible.
void say(std::string_view text);
// Says the message and gives the exit status that belongs to it.
int fail(const Status& status);

// stdout. A reader that went away (`| head`) is no error: closed() tells, and writing has no effect.
class DataOut {
 public:
  ~DataOut();
  void write(std::string_view text);
  bool closed() const { return closed_; }
  void flush();
  // Writes what is left. kDone, or kNotWritten after saying why (disk full).
  ExitStatus finish();

 private:
  std::string buffer_;
  bool closed_ = false;
  int error_ = 0;
};

// Everything to stdout, then `status` unless it could not be written.
int print_and_return(std::string_view text, int status = kDone);

// Colours only on a terminal, never with NO_COLOR set or TERM=dumb.
bool stdout_has_colour();
int stdout_width();  // columns, 100 where it is no terminal

// Writes beside the target and renames: a reader sees the old file or the whole new one. A link at the
// target is replaced, never followed: folders with traces may come from anywhere.
Status replace_file(const std::string& path, std::string_view text);
// For a file the user named: "-" is stdout, and what is no regular file (a device, a pipe) is written to
// directly; else replace_file.
Status write_output(const std::string& path, std::string_view text);

}  // namespace nanhunt::cli
