// SPDX-License-Identifier: Apache-2.0
// Tracebacks of Python in a text, line by line: the exception, the last frame of the program's own code, and whether
// it was a bad number that ended the program.
#pragma once

#include <string_view>

#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

class TracebackLines {
 public:
  explicit TracebackLines(EvidenceBuilder& out) : out_(&out) {}
  // True where the line belongs to a traceback, or is a message of its own that ended a run.
  bool take(std::string_view line);
  void end();  // of the text

 private:
  bool take_frame(std::string_view line);
  void finish(std::string_view line);

  EvidenceBuilder* out_;
  Traceback now_, forward_;  // forward_: of anomaly mode, the call that made what backward failed on
  std::string code_;         // the last line of code in it
  bool open_ = false;        // within a traceback
  bool forward_open_ = false;
};

}  // namespace nanhunt::autopsy
