// SPDX-License-Identifier: Apache-2.0
// run.json: RunInfo as text and back.
#pragma once

#include <string>
#include <string_view>

#include "nanhunt/trace.h"

namespace nanhunt::trace {

std::string run_info_text(const RunInfo& info);
// False if `text` is not a run.json; then `info` is as it was. A field of the wrong type keeps its default.
bool parse_run_info(std::string_view text, RunInfo& info);
// Reads FOLDER/run.json, at most kMaxRunInfoBytes of it and through no link.
bool read_run_info(const std::string& folder, RunInfo& info);

}  // namespace nanhunt::trace
