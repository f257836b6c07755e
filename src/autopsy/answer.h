// SPDX-License-Identifier: Apache-2.0
// The answer of `nanhunt autopsy`: for people in at most 20 lines, and as JSON.
#pragma once

#include <optional>
#include <string>

#include "src/autopsy/evidence.h"
#include "src/autopsy/judge.h"
#include "src/autopsy/next_command.h"

namespace nanhunt::autopsy {

std::string answer_text(const Evidence& evidence, const Judgement& judgement, const std::optional<Resume>& resume,
                        bool colour, int width);
// Schema nanhunt.autopsy, version 1; `exit_status` is that of the verb.
std::string answer_json(const std::string& run, const Evidence& evidence, const Judgement& judgement,
                        const std::optional<Resume>& resume, int exit_status);

}  // namespace nanhunt::autopsy
