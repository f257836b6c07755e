// SPDX-License-Identifier: Apache-2.0
// A program that is started with pipes to this one.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace nanhunt::cli {

struct PipedProgram {
  std::vector<std::string> command;      // the first word is looked for on PATH
  std::vector<std::string> environment;  // "NAME=value"
  bool reads_input = false;              // else its stdin is /dev/null
  bool pipes_errors = false;             // else its stderr is ours
  bool own_group = false;                // Ctrl-C does not reach it
};

struct PipedChild {
  pid_t pid = -1;
  int input = -1, output = -1, errors = -1;  // our ends; -1: no pipe
  int start_error = 0;                       // errno where it could not be started; then nothing else holds
};

// In the environment of a child: the process with which it ends, however that one ends.
inline constexpr char kParent[] = "NANHUNT_PARENT";
void end_with_parent();  // asks for that, where it was given; in the child, first of all

PipedChild start_piped(PipedProgram program);
void close_end(int& end);
// 128 + N where signal N ended it.
int wait_for(pid_t pid);

}  // namespace nanhunt::cli
