// SPDX-License-Identifier: Apache-2.0
// A module of the Python package, run beside this program: for what only Python has libraries for.
#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "nanhunt/status.h"

namespace nanhunt::cli {

// It ends with its stdin, which closes with this object or this process. What it has to say goes to our stderr.
class PythonProgram {
 public:
  enum class Terminal { kShared, kApart };  // apart: Ctrl-C does not reach it

  // By NANHUNT_PYTHON, else `python3`. `module`: "nanhunt.store".
  static Result<PythonProgram> start(const std::string& module, const std::vector<std::string>& words,
                                     Terminal terminal = Terminal::kShared);

  PythonProgram(PythonProgram&& from) noexcept;
  PythonProgram& operator=(PythonProgram&&) = delete;
  ~PythonProgram();  // waits for its end

  bool write_line(std::string_view line);  // to its stdin; false: it has ended
  void close_input();
  std::string read_line();  // from its stdout, without the newline; empty: there is none any more
  void leave();             // closes its stdin, and lets it go on alone
  int wait();               // closes its stdin; its exit status, 128 + N when signal N ended it

 private:
  PythonProgram(pid_t child, int input, int output) : child_(child), input_(input), output_(output) {}

  pid_t child_ = -1;
  int input_ = -1, output_ = -1, status_ = 0;
  std::string read_ = {};
};

}  // namespace nanhunt::cli
