// SPDX-License-Identifier: Apache-2.0
// Tracebacks of Python in a text, line by line: the exception, the last frame of the program's own code, and whether
// it was a bad number that ended the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

class TracebackLines {
 public:
  explicit TracebackLines(EvidenceBuilder& out) : out_(&out) {}
  // True where the line, without its rank, belongs to a traceback.
  bool take(std::string_view line);
  void end_message();  // what comes now is no part of an exception's message
  void end();          // of the text

 private:
  enum class Within : std::uint8_t { kNothing, kForwardCall, kFrames, kMessage };

  bool begins(std::string_view line);
  bool take_frame(std::string_view line);
  void take_code(std::string_view line);
  void finish(std::string_view line);

  EvidenceBuilder* out_;
  Traceback now_, forward_;  // forward_: of anomaly mode, the call that made what backward failed on
  std::string code_;         // the last line of code in it
  std::string prefix_;       // what a launcher puts before each line: "(TrainWorker pid=12) "
  std::string message_;      // lines of it after the first, and the first
  Within within_ = Within::kNothing;
};

}  // namespace nanhunt::autopsy
