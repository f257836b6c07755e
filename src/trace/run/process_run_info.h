// SPDX-License-Identifier: Apache-2.0
// The part of run.json that every run fills alike: version, rank, host, process, start.
#pragma once

#include "nanhunt/trace.h"

namespace nanhunt {

RunInfo make_run_info();

}  // namespace nanhunt
