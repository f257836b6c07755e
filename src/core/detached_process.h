// SPDX-License-Identifier: Apache-2.0
// A program that is started and left to itself.
#pragma once

#include <string>
#include <vector>

namespace nanhunt {

// As exec takes words: they must outlive it.
std::vector<char*> argv_of(std::vector<std::string>& words);

struct DetachedProgram {
  std::vector<std::string> command;      // the first word is looked for on PATH
  std::vector<std::string> environment;  // "NAME=value"
  std::string input;                     // what it reads from stdin
  int output = -1;                       // a file descriptor for its stdout and stderr; -1: /dev/null
};

// It is nobody's child: this process gets no SIGCHLD, its wait() never sees it, and no terminal or process group ends it
// with us. Memory is not copied, however large this process is. Returns when the program runs; 0, or an errno.
int start_detached(const DetachedProgram& program);

}  // namespace nanhunt
