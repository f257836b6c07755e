// SPDX-License-Identifier: Apache-2.0
// The program's own code at a finding, as people are shown it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

struct CodeLine {
  std::string number, text;
  bool here = false;  // the line that ran
};

struct FrameView {
  std::string place;     // "/data/me/train.py:42"; of an installed package from its folder on: "torch/optim/sgd.py:42"
  std::string function;  // may be empty
  std::string code;      // the statement that ran in one line, of a long one the line that ran; empty: not known
  std::vector<CodeLine> lines;
};

// Innermost first, each.
struct FramesView {
  std::vector<FrameView> own;        // the program's; where there are none, the innermost of all
  std::vector<FrameView> installed;  // of packages and of Python itself: between them, above or below
};

inline constexpr std::size_t kMaxFrames = 16;

FramesView view_frames(const std::vector<SourceFrame>& frames);

// " Likewise at train.py:43.": the other lines of the same fault; "": there are none.
std::string likewise_at(const Finding& finding);

// "At train.py:42 (y = x / n): raise eps"; empty where no advice is left. Names the program's line where it is known.
std::string change_sentence(const Finding& finding);

}  // namespace nanhunt::reports
