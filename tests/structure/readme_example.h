// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "nanhunt/recorder.h"
#include "nanhunt/status.h"

nanhunt::Status watch_growth(const std::string& run_dir, std::uint32_t steps);
void record_log(nanhunt::Recorder& recorder, std::uint32_t step, nanhunt::ValueView read, nanhunt::ValueView made);
