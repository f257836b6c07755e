// SPDX-License-Identifier: Apache-2.0
// The command that proves it: the run once more, watched, from a checkpoint before the first bad number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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

// What the weights in a checkpoint are, where somebody looked.
enum class Weights : std::uint8_t { kNotJudged, kSound, kBad, kUnreadable };
std::string_view weights_word(Weights weights);
using JudgeWeights = std::function<Weights(const std::string& path)>;  // path of a checkpoint

struct Resume {
  const Checkpoint* checkpoint = nullptr;  // none: all of them are bad, or none is left
  Weights weights = Weights::kNotJudged;
  std::vector<std::string> bad;  // newer ones from before the first bad number, bad or not readable
  std::string text;
};
// The newest checkpoint from before the first bad number that shows none itself. Judged from the newest on, eight at
// most.
std::optional<Resume> resume_from(const Evidence& evidence, const Judgement& judgement, const JudgeWeights& judge);

}  // namespace nanhunt::autopsy
