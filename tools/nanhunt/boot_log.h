// SPDX-License-Identifier: Apache-2.0
// What the start-up file of the Python package (hooks/torch/nanhunt/boot) tells `run`: how far each Python came. Only
// read when nothing was recorded, to say why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nanhunt::cli {

struct BootLog {
  std::uint64_t started = 0;           // Pythons that ran the start-up file
  std::uint64_t imported_torch = 0;    // of these
  std::uint64_t attached = 0;          // of these
  std::vector<std::string> failures;  // distinct, at most 8; whose text is not ours
};

// A file in memory that lasts as long as this program, whatever becomes of it.
class BootLogFile {
 public:
  BootLogFile();
  ~BootLogFile();
  BootLogFile(const BootLogFile&) = delete;
  BootLogFile& operator=(const BootLogFile&) = delete;

  const std::string& path() const { return path_; }  // for other processes; empty: could not be made
  BootLog read() const;

 private:
  int file_ = -1;
  std::string path_;
};

}  // namespace nanhunt::cli
