// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "nanhunt/status.h"

nanhunt::Status watch_growth(const std::string& run_dir, std::uint32_t steps);
