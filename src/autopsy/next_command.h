// SPDX-License-Identifier: Apache-2.0
// The command that proves it: the run once more, watched, from a checkpoint before the first bad number.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/autopsy/judge.h"

namespace nanhunt::autopsy {

struct NextCommand {
  std::vector<std::string> words;
  bool known = false;        // how the run was started stands in the log; else `python train.py` stands in for it
  std::string text() const;  // for a shell
};

// `stop`: a run of many steps ends after the first that shows the fault.
NextCommand next_command(const Evidence& evidence, const Judgement& judgement);

struct Resume {
  const Checkpoint* checkpoint = nullptr;
  std::string text;
};
// The newest checkpoint from before the first bad number that shows none itself.
std::optional<Resume> resume_from(const Evidence& evidence, const Judgement& judgement);

}  // namespace nanhunt::autopsy
