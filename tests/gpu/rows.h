// SPDX-License-Identifier: Apache-2.0
// What a check found, as lines of JSON that tools/gpu_check merges into one table.
#pragma once

#include <cstdio>
#include <string>

namespace nanhunt::gpu {

// Writes to a file as it goes, so that a check that dies leaves what it had found.
class Rows {
 public:
  explicit Rows(const std::string& path) : file_(path.empty() ? stdout : std::fopen(path.c_str(), "a")) {}
  ~Rows() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  bool is_open() const { return file_ != nullptr; }
  bool failed() const { return failed_; }

  void check(const std::string& name, bool passed, const std::string& detail) {
    failed_ = failed_ || !passed;
    write(name, passed ? "passed" : "failed", detail, "");
  }
  void skip(const std::string& name, const std::string& why) { write(name, "skipped", why, ""); }
  // A measurement, with the ratio that it is held to where there is one.
  void measure(const std::string& name, double ratio, double required, const std::string& detail) {
    const bool passed = required == 0 || ratio >= required;
    failed_ = failed_ || !passed;
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, ", \"ratio\": %.4f, \"required\": %.2f", ratio, required);
    write(name, required == 0 ? "measured" : passed ? "passed" : "failed", detail, numbers);
  }
  // A measurement that must not be more than a limit.
  void limit(const std::string& name, double ratio, double at_most, const std::string& detail) {
    failed_ = failed_ || !(ratio <= at_most);
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, ", \"ratio\": %.4f, \"at_most\": %.3f", ratio, at_most);
    write(name, ratio <= at_most ? "passed" : "failed", detail, numbers);
  }

 private:
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + "\"";
  }
  void write(const std::string& name, const char* status, const std::string& detail, const char* numbers) {
    std::fprintf(file_, "{\"check\": %s, \"status\": \"%s\", \"detail\": %s%s}\n", quoted(name).c_str(), status,
                 quoted(detail).c_str(), numbers);
    std::fflush(file_);
  }

  std::FILE* file_;
  bool failed_ = false;
};

}  // namespace nanhunt::gpu
