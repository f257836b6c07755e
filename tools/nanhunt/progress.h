// SPDX-License-Identifier: Apache-2.0
// One line of progress on stderr, on a terminal only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nanhunt::cli {

class Progress {
 public:
  Progress(std::string what, std::uint64_t total);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(std::uint64_t done, const std::string& note);

 private:
  std::string what_;
  std::uint64_t total_;
  bool shown_ = false, enabled_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace nanhunt::cli
