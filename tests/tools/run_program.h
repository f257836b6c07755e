// SPDX-License-Identifier: Apache-2.0
// Runs the built command line as a user would.
#pragma once

#include <string>
#include <vector>

namespace nanhunt::testing_tools {

struct Outcome {
  int status = -1;  // exit status; 128 + n when it died of signal n
  std::string out, err;
};

struct RunOptions {
  std::string stdout_to = {};                 // a file instead of Outcome::out
  bool close_stdout_early = false;            // the reader goes away after the first byte
  std::vector<std::string> environment = {};  // "NAME=value", added
};

Outcome run_nanhunt(const std::vector<std::string>& arguments, const RunOptions& options = {});

// A new empty folder, until this process ends.
std::string make_folder();
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

}  // namespace nanhunt::testing_tools
