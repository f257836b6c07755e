// SPDX-License-Identifier: Apache-2.0
// A recorder's options as the caller tells them: what to record how, and what run.json says of the run.
#pragma once

#include <string_view>

#include "nanhunt/c_api.h"
#include "nanhunt/recorder.h"
#include "nanhunt/trace.h"

namespace nanhunt::c_api {

struct OpenOptions {
  RecorderOptions recorder;
  RunInfo info;
};

// Misuse says what is wrong.
OpenOptions open_options(const nanhunt_recorder_options& given);

// The JSON object of nanhunt_recorder_options::details, with secrets taken out.
void add_details(std::string_view json, RunInfo& info);

}  // namespace nanhunt::c_api
